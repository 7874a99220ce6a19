#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "gpu_worker/ops/exchange_rows.h"
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
  // `tier_step` is that of all devices.
  StageRunner(const PipelineParts& parts, const StepInput& input, const StepLayout& layout,
              TierStep* tier_step);

  // Queues the whole step and returns while it runs. An error (of the exchange's BeginStep) means
  // that only a part was queued.
  absl::Status Launch();
  // What the step gave, of the first device; the streams must be idle.
  StepOutput TakeOutput();
  // The step's timeline, the CPU worker's part included. After TakeOutput and before the next step.
  std::vector<TraceSpan> Spans() const;

 private:
  device::Stream& StreamOf(StageResource resource) const;
  // Whether there was another stream's stage to wait for.
  bool WaitForOthers(const Stage& stage, device::Stream& stream);
  void StampBegin(size_t stage, device::Stream& stream, bool waits);
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
  std::vector<StageTimes> times_;                       // by stage, like the following
  std::vector<int32_t> begins_after_;                   // >= 0: at the end of that stage
  std::vector<std::unique_ptr<device::Event>> events_;  // where another stream waits
  absl::flat_hash_map<const device::Stream*, int32_t> newest_on_;
  StepOutput output_;
};

}  // namespace tandem::gpu_worker
