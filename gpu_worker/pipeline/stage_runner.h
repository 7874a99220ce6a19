#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "gpu_worker/ops/exchange_rows.h"
#include "gpu_worker/pipeline/graph_shape.h"
#include "gpu_worker/pipeline/pipeline_parts.h"
#include "gpu_worker/pipeline/stage_program.h"
#include "gpu_worker/pipeline/stage_times.h"
#include "gpu_worker/pipeline/step_io.h"
#include "gpu_worker/pipeline/step_layout.h"
#include "gpu_worker/pipeline/tier_step.h"

namespace tandem::gpu_worker {

// One step on one device's streams. All references live until the streams are idle again.
class StageRunner {
 public:
  // `tier_step` is that of all devices. `shape`: of a layout that was filled up, whose step may run
  // as a graph.
  StageRunner(const PipelineParts& parts, const StepInput& input, const StepLayout& layout,
              TierStep* tier_step, const std::optional<GraphShape>& shape = std::nullopt);

  // Queues the whole step and returns while it runs. An error (of the exchange's BeginStep) means
  // that only a part was queued.
  absl::Status Launch();
  // Whether the step runs as a graph, and whether that was captured for it.
  bool is_graph() const { return graph_ != nullptr; }
  bool is_captured() const { return is_captured_; }
  // What the step gave, of the first device; the streams must be idle.
  StepOutput TakeOutput();
  // The step's timeline, the CPU worker's part included. After TakeOutput and before the next step.
  std::vector<TraceSpan> Spans() const;

 private:
  device::Stream& StreamOf(StageResource resource) const;
  // Stages [first, last), one by one. Earlier ones are behind what they depend on.
  absl::Status LaunchStages(size_t first, size_t last);
  // The same stages as a graph, captured where there is none yet.
  absl::Status LaunchGraph(size_t first, size_t last);
  absl::StatusOr<StepGraph> Capture(size_t first, size_t last);
  // Once per step: tells the CPU workers of it and watches over this device's joins.
  absl::Status BeginCpuStep();
  // Whether there was another stream's stage to wait for.
  bool WaitForOthers(const Stage& stage, device::Stream& stream);
  void StampBegin(size_t stage, device::Stream& stream, bool waits);
  // Where a stage's stamps go: of this step, or of the graph that is being captured.
  StageTimes& StampsOf(size_t stage);
  absl::Status LaunchStage(size_t index, device::Stream& stream);
  // One layer of one sequence's KV between blocks of a device pool and CPU blocks.
  struct TierCopy {
    ops::PoolLayer device;
    std::span<const int32_t> device_blocks;
    int32_t layer = 0;  // of the CPU pool
    std::span<const int32_t> cpu_blocks;
    bool to_cpu = false;
    int64_t first = 0;
    int64_t count = 0;
    bool use_team = true;
    bool all_layers = false;  // from layer 0 on
  };

  void LaunchCopies(device::Stream& stream);
  void CopyBetweenTiers(const TierCopy& copy, device::Stream& stream);
  void LaunchAttend(size_t index, device::Stream& stream);
  void LaunchCpuPrefill(const CpuPrefill& prefill, int32_t layer, device::Stream& stream);
  void LaunchMoveOut(const CpuPrefill& prefill, int32_t layer, device::Stream& stream);
  ops::ExchangeWindow ExchangeWindowOf(const HeadWindow& window) const;
  absl::Status LaunchSend(const Stage& stage, device::Stream& stream);
  void LaunchJoin(const Stage& stage, device::Stream& stream);
  void LaunchSample(device::Stream& stream);
  void SampleRows(size_t first, size_t count);
  void ChooseOnDevice(size_t first, size_t count);
  // Of each layer that the CPU worker computed, by its own clock.
  std::vector<TraceSpan> CpuSpans() const;
  void PseudoSampleRows(size_t first, size_t count);  // where there are no logits

  const PipelineParts& parts_;
  const StepInput& input_;
  const StepLayout& layout_;
  TierStep* const tier_step_;
  std::vector<int32_t> logit_row_ids_;
  const std::vector<Stage> stages_;
  const std::optional<GraphShape> shape_;
  std::vector<StageTimes> times_;                       // by stage, like the following
  std::vector<int32_t> begins_after_;                   // >= 0: at the end of that stage
  std::vector<std::unique_ptr<device::Event>> events_;  // where another stream waits
  absl::flat_hash_map<const device::Stream*, int32_t> newest_on_;
  size_t range_begin_ = 0;  // of the stages that are being launched
  StepGraph* graph_ = nullptr;
  size_t graph_begin_ = 0;                 // the graph's first stage
  StepGraph* recorded_ = nullptr;          // the graph that is being captured
  std::unique_ptr<device::Event> loaded_;  // the moves to the device pool are done
  bool is_captured_ = false;
  bool watches_joins_ = false;
  StepOutput output_;
};

}  // namespace tandem::gpu_worker
