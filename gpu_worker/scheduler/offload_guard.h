#pragma once

#include <cstdint>

namespace tandem::gpu_worker {

// Switches offloading off for a while when offloaded steps turn out slower than what the device
// alone was predicted to do. Pure: times are arguments.
class OffloadGuard {
 public:
  // A step with CPU decodes ended: its measured value per microsecond, and the GPU-only
  // prediction of the same moment. True when this observation switched offloading off.
  bool Observe(double value_per_us, double gpu_only_value_per_us, int64_t now_us);
  bool OffloadPays(int64_t now_us) const { return now_us >= disabled_until_us_; }

 private:
  static constexpr double kWorthwhile = 0.9;  // of GPU only; below it offloading costs
  static constexpr int kMinSteps = 16;        // before a verdict
  static constexpr double kWeight = 0.1;
  static constexpr int64_t kFirstPauseUs = 2'000'000;
  static constexpr int64_t kLongestPauseUs = 30'000'000;

  double ratio_ = 1.0;
  int steps_ = 0;
  int64_t pause_us_ = kFirstPauseUs;
  int64_t disabled_until_us_ = 0;
};

}  // namespace tandem::gpu_worker
