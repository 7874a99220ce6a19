#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/pipeline/pipeline_parts.h"
#include "gpu_worker/pipeline/stage_program.h"
#include "gpu_worker/pipeline/step_io.h"
#include "gpu_worker/pipeline/step_layout.h"
#include "gpu_worker/pipeline/term_clock.h"

namespace tandem::gpu_worker {

// One step on the device's streams. All references live until the streams are idle again.
class StageRunner {
 public:
  StageRunner(const PipelineParts& parts, const StepInput& input, const StepLayout& layout);

  // Queues the whole step and returns while it runs. An error (of the exchange's BeginStep) means
  // that only a part was queued.
  absl::Status Launch();
  // Whether the CPU worker was told of this step.
  bool began() const { return began_; }
  // What the step gave; the streams must be idle.
  StepOutput TakeOutput();

 private:
  device::Stream& StreamOf(StageResource resource) const;
  absl::Status LaunchStage(const Stage& stage, device::Stream& stream);
  void LaunchCopies(device::Stream& stream);
  void LaunchAttend(const Stage& stage, device::Stream& stream);
  void LaunchCpuPrefill(const CpuPrefill& prefill, int32_t layer, device::Stream& stream);
  absl::Status LaunchSend(const Stage& stage, device::Stream& stream);
  void LaunchJoin(const Stage& stage, device::Stream& stream);
  void LaunchSample(device::Stream& stream);
  void SampleRows(size_t first, size_t count);
  TermClock& ClockOf(const device::Stream& stream) {
    return clocks_[&stream == parts_.transfer.get() ? 1 : 0];
  }

  const PipelineParts& parts_;
  const StepInput& input_;
  const StepLayout& layout_;
  std::vector<int32_t> logit_row_ids_;
  std::vector<std::unique_ptr<device::Event>> events_;  // by stage, where another stream waits
  TermClock clocks_[2];                                 // compute, transfer
  StepOutput output_;
  bool began_ = false;
};

}  // namespace tandem::gpu_worker
