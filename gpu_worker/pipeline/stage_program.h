#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/pipeline/step_mode.h"

// A step as a list of stages with explicit dependencies. The pipeline runner executes it on device
// streams; the cost model and the simulator walk it with predicted times. Pure.
namespace tandem::gpu_worker {

enum class StageKind {
  kCopies,  // moves between the pools, of sequences that have no rows in the step
  kEmbed,
  kPre,      // norm, QKV, RoPE; stores K and V of device rows
  kSend,     // Q, K, V rows of CPU decodes to the exchange, then post
  kAttend,   // device attention of the sub-batch's device rows; for prompts whose KV goes to the
             // CPU, their earlier chunks' KV of the layer is copied in first
  kMoveOut,  // that layer's new KV of those prompts leaves the staging area for the CPU pool
  kJoin,     // waits for done and takes the CPU rows' outputs in
  kPost,     // output projection, MLP
  kSample,   // final norm, logits, sampling; one stage for both sub-batches (weights read once)
};

// What runs a stage; stages of one resource run in list order. kMover is a copy engine of its own:
// what leaves the device in bulk must not stand before a join. kSwapper is another one:
// what moves between the pools has the whole step's time and must not hold up a staging area.
enum class StageResource { kCompute, kTransfer, kMover, kSwapper };
inline constexpr int kStageResources = 4;

struct Stage {
  StageKind kind = StageKind::kEmbed;
  int32_t sub_batch = 0;  // 0: A, 1: B
  int32_t layer = 0;
  StageResource resource = StageResource::kCompute;
  std::vector<int32_t>
      depends_on;  // indices of earlier stages, beyond the order of the own resource
};

// What of a step decides its program.
struct ProgramShape {
  StepMode mode = StepMode::kGpuOnly;
  StageOrder order = StageOrder::kOverlapped;  // of the asymmetric mode
  int32_t num_layers = 0;
  bool has_copies = false;
  bool has_rows[2] = {false, false};
  bool has_cpu_rows[2] = {false, false};
  bool moves_out[2] = {false, false};  // has prompts whose KV moves to the CPU pool beside the rest
  // Has prompts that pass through the staging area, if need be all of it; moves_out implies it.
  bool uses_staging[2] = {false, false};
};

// The order of the asymmetric mode is the design's:
//   pre(A,0) send(A,0) pre(B,0) send(B,0) attend(A,0)
//   for i in 0 .. L-2: post(A,i) pre(A,i+1) send(A,i+1) attend(B,i) post(B,i) pre(B,i+1)
//   send(B,i+1) attend(A,i+1) post(A,L-1) attend(B,L-1) post(B,L-1)
// where attend stands for kAttend and kJoin, and send and join run on the transfer resource.
// Published order: a sub-batch's send follows the other one's join,
//   pre(A,0) send(A,0) pre(B,0) attend(A,0) send(B,0)
//   for i in 0 .. L-2: post(A,i) pre(A,i+1) attend(B,i) send(A,i+1)
//                      post(B,i) pre(B,i+1) attend(A,i+1) send(B,i+1)
//   post(A,L-1) attend(B,L-1) post(B,L-1)
// so that A's CPU part hides behind B's dense stage and A's device attention, and B's behind A's
// dense stage.
// A prompt that will live on the CPU moves out layer by layer: move_out(X, i) follows attend(X, i)
// on the mover, beside post(X, i) and pre(X, i + 1), and the next attend(X) waits for it, because
// one layer's staging area serves all layers. Moves between the pools depend on nothing and nothing
// depends on them: the step ends when they are done, too. Unified and GPU only run one sub-batch,
// layer by layer. A sub-batch without rows has no stages; GPU only has no kSend and kJoin.
std::vector<Stage> BuildStageProgram(const ProgramShape& shape);

}  // namespace tandem::gpu_worker
