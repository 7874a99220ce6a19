#pragma once

#include <algorithm>
#include <mutex>

#include "gpu_worker/device/paced/pace_clock.h"

namespace tandem::gpu_worker::device {

// Time that moves only when somebody sleeps, and then at once.
class FakePaceClock : public PaceClock {
 public:
  double NowUs() const override {
    const std::lock_guard lock(mutex_);
    return now_us_;
  }
  void SleepUntil(double time_us) override { AdvanceTo(time_us); }
  void AdvanceTo(double time_us) {
    const std::lock_guard lock(mutex_);
    now_us_ = std::max(now_us_, time_us);
  }

 private:
  mutable std::mutex mutex_;
  double now_us_ = 1000;
};

}  // namespace tandem::gpu_worker::device
