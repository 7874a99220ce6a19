#pragma once

#include <atomic>
#include <mutex>

#include "absl/status/status.h"
#include "gpu_worker/pipeline/cpu_tier.h"
#include "gpu_worker/pipeline/step_layout.h"

namespace tandem::gpu_worker {

// Tells the CPU attention workers of a step once, whichever device's thread asks first; the others
// wait for its answer, as BeginStep's own deadline allows.
class TierStep {
 public:
  // `tier` is null where no step has CPU rows. All of it outlives this.
  TierStep(CpuTier* tier, uint64_t epoch, const StepLayout& layout, float scale, int64_t timeout_us)
      : tier_(tier), epoch_(epoch), layout_(layout), scale_(scale), timeout_us_(timeout_us) {}

  // As of CpuTier::BeginStep. Any thread.
  absl::Status Begin() {
    std::call_once(once_, [this] {
      began_.store(true);
      status_ = tier_->BeginStep(epoch_, layout_.sub_batch[0].cpu_slot,
                                 layout_.sub_batch[1].cpu_slot, scale_, timeout_us_);
    });
    return status_;
  }
  bool began() const { return began_.load(); }

 private:
  CpuTier* tier_;
  const uint64_t epoch_;
  const StepLayout& layout_;
  const float scale_;
  const int64_t timeout_us_;
  std::once_flag once_;
  std::atomic<bool> began_{false};
  absl::Status status_;
};

}  // namespace tandem::gpu_worker
