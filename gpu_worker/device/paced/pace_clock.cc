#include "gpu_worker/device/paced/pace_clock.h"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "common/base/clock.h"

namespace tandem::gpu_worker::device {
namespace {

// What a sleep may come late by is learnt within these bounds. An idle core takes 50-60 us to wake
// (measured on a virtual machine), one that is busy 5 us.
constexpr double kLeastMarginUs = 5.0;
constexpr double kMostMarginUs = 80.0;
constexpr double kMarginWeight = 0.1;
constexpr double kFirstMarginUs = 60.0;

class RealClock : public PaceClock {
 public:
  double NowUs() const override { return static_cast<double>(base::SystemClock().NowUs()); }

  void SleepUntil(double time_us) override {
    // Per thread: those of one device wait for different things.
    static thread_local double margin_us = kFirstMarginUs;
    static thread_local const bool exact_timers = prctl(PR_SET_TIMERSLACK, 1UL) == 0;
    (void)exact_timers;
    double now_us = NowUs();
    const double target_us = time_us - margin_us;
    if (now_us < target_us) {
      SleepSystem(target_us);
      now_us = NowUs();
      const double late_us = std::clamp(now_us - target_us, kLeastMarginUs, kMostMarginUs);
      margin_us += kMarginWeight * (late_us - margin_us);
    }
    while (now_us < time_us) {
      sched_yield();
      now_us = NowUs();
    }
  }

 private:
  // base::SystemClock is the kernel's monotonic clock.
  static void SleepSystem(double time_us) {
    const auto ns = static_cast<int64_t>(time_us * 1e3);
    timespec until{};
    until.tv_sec = ns / 1'000'000'000;
    until.tv_nsec = ns % 1'000'000'000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
};

}  // namespace

PaceClock& RealPaceClock() {
  static RealClock clock;
  return clock;
}

void RaisePacePriority() {
  sched_param priority{};
  priority.sched_priority = 1;
  sched_setscheduler(0, SCHED_FIFO, &priority);
}

}  // namespace tandem::gpu_worker::device
