#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "gpu_worker/pipeline/step_io.h"
#include "gpu_worker/scheduler/offload_policy.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace tandem::gpu_worker {

enum class FinishReason { kNone, kStop, kLength, kAbort };

// What happened to one sequence in one step.
struct GenerationUpdate {
  std::vector<int32_t> tokens;                 // at most one with today's runner
  std::vector<TokenLogprobs> logprobs;         // one per token when asked for
  std::vector<TokenLogprobs> prompt_logprobs;  // all, once (entry i is of prompt token i + 1)
  FinishReason finish = FinishReason::kNone;
  std::optional<int32_t> stop_token;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t completion_tokens = 0;
  absl::Status error;  // not OK: the sequence ended without finishing (finish is kAbort)
};

// Called on the engine's thread; must not block and must not call the engine.
using UpdateSink = std::function<void(GenerationUpdate)>;

struct GenerationRequest {
  std::string request_id;
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t>
      resumed_tokens;  // generated elsewhere before: count as output, are not sent again
  SamplingParams sampling;
  int32_t max_tokens = 0;  // of output, resumed_tokens included
  int32_t min_tokens = 0;
  bool ignore_eos = false;
  std::vector<int32_t> stop_token_ids;
  int32_t num_logprobs = -1;
  int32_t num_prompt_logprobs = -1;
  int32_t priority = 0;
  int64_t deadline_us = 0;  // of Clock::NowUs; 0: none
  // What the output must look like; null: anything. Its end tokens come only where the output may
  // end, and then end it, `ignore_eos` and `min_tokens` notwithstanding where nothing else may
  // come.
  std::shared_ptr<TokenConstraint> constraint;
};

// Normal refusals.
enum class SubmitOutcome {
  kAccepted,
  kQueueFull,
  kTooLong,
  kNeverFits,
  kInvalidToken,
  kDraining,
  kStopped
};

struct SubmitResult {
  SubmitOutcome outcome = SubmitOutcome::kAccepted;
  uint64_t sequence_id = 0;
  std::string message;  // of a refusal, for the client
};

struct EngineOptions {
  OffloadPolicy offload = OffloadPolicy::kAuto;
  int32_t max_model_len = 0;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_waiting = 4096;  // beyond: kQueueFull
  std::vector<int32_t> eos_token_ids;
  // Then CPU sequences that fit the device are recomputed there; the others keep their KV and wait.
  int64_t cpu_worker_away_limit_us = 30'000'000;
  // Then those that only the CPU tier can hold end with an error.
  int64_t cpu_worker_lost_limit_us = 600'000'000;
  int64_t max_inter_token_latency_us = 0;  // > 0: target of steps with running decodes
  SchedulerSwitches switches;
  // Costs are measured once the engine is idle, and kept in this folder (empty: nowhere) under
  // `cost_key`, which has to name everything that they depend on.
  bool measure_costs = false;
  std::string cost_folder;
  std::string cost_key;
  bool check_invariants_each_step = false;
};

// For metrics and WorkerControl; a consistent copy.
struct EngineSnapshot {
  int32_t waiting = 0, prefill = 0, gpu_decode = 0, cpu_decode = 0, moving = 0;
  int32_t gpu_blocks_free = 0, gpu_blocks_used = 0, gpu_blocks_cached = 0;
  int32_t cpu_blocks_free = 0, cpu_blocks_used = 0, cpu_blocks_cached = 0;
  uint64_t steps[3] = {0, 0, 0};                 // by StepMode
  uint64_t graph_steps = 0, graph_captures = 0;  // of them: run as CUDA graphs, and captured for it
  uint64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  uint64_t decode_tokens_gpu = 0, decode_tokens_cpu = 0;
  uint64_t cpu_context_tokens = 0;  // that the CPU tier's decodes attended to
  uint64_t swap_outs = 0, swap_ins = 0, recomputes = 0;
  uint64_t aborted_steps_cpu_worker_lost = 0, aborted_steps_other = 0;
  uint64_t offload_pauses = 0, offload_resumes = 0;  // by the guard
  bool cpu_attention_up = false;
  bool offload_enabled = false;
  bool draining = false;
  uint64_t progress = 0;  // moves while work is pending
};

// Per-step observations (duration, mode, predicted / measured by term) for histograms; called on
// the engine's thread.
struct StepObservation {
  StepMode mode = StepMode::kGpuOnly;
  double duration_us = 0;
  std::vector<std::pair<const char*, double>> measured_over_predicted;  // term, ratio
};

// Owns EngineCore and the thread that plans, runs and commits steps. All methods are thread-safe.
class Engine {
 public:
  static std::unique_ptr<Engine> Create(const EngineOptions& options, StepRunner* runner,
                                        const base::Clock* clock,
                                        std::function<void(const StepObservation&)> observer);
  virtual ~Engine() = default;  // stops the thread; open sequences end with kAbort
  virtual void Start() = 0;
  virtual SubmitResult Submit(GenerationRequest request, UpdateSink sink) = 0;
  virtual void Cancel(
      uint64_t sequence_id) = 0;  // unknown ids are ignored; the sink is not called again
                                  // afterwards, except by a step that is just committing
  // From the link to the CPU attention worker.
  virtual void OnCpuWorkerUp() = 0;
  virtual void OnCpuWorkerDown() = 0;
  // What CPU attention runs on; costs measured with another one are not used. Before OnCpuWorkerUp.
  virtual void DescribeCpuWorker(const std::string& description) {}
  virtual void OnCpuBlocksReady(
      int32_t num_blocks) = 0;                    // blocks [0, num_blocks) may be handed out
  virtual void BeginDrain() = 0;                  // refuses new requests, finishes the rest
  virtual bool WaitIdle(int64_t timeout_us) = 0;  // true when no sequence is left
  virtual EngineSnapshot snapshot() const = 0;
};

}  // namespace tandem::gpu_worker
