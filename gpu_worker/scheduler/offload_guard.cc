#include "gpu_worker/scheduler/offload_guard.h"

#include <algorithm>

namespace tandem::gpu_worker {

bool OffloadGuard::Observe(double value_per_us, double gpu_only_value_per_us, int64_t now_us) {
  if (!(gpu_only_value_per_us > 0) || !(value_per_us > 0)) {
    return false;
  }
  const double ratio = std::min(value_per_us / gpu_only_value_per_us, 4.0);
  ratio_ = steps_ == 0 ? ratio : ratio_ + kWeight * (ratio - ratio_);
  ++steps_;
  if (steps_ < kMinSteps) {
    return false;
  }
  if (ratio_ >= kWorthwhile) {
    pause_us_ = kFirstPauseUs;
    return false;
  }
  disabled_until_us_ = now_us + pause_us_;
  pause_us_ = std::min(2 * pause_us_, kLongestPauseUs);
  steps_ = 0;
  return true;
}

}  // namespace tandem::gpu_worker
