#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"
#include "gpu_worker/device/device.h"

namespace tandem::gpu_worker {

enum class Term { kLinear, kPrefill, kGpuDecode, kCpuWait, kCopies, kCount };

// Shares out a stream's time among the cost model's terms: each mark gives the time since the mark
// before it to a term. Marks run on the stream; read when it is idle.
class TermClock {
 public:
  void Start(device::Stream& stream) {
    stream.Launch([this] {
      last_us_ = base::SystemClock().NowUs();
      return absl::OkStatus();
    });
  }

  void Mark(device::Stream& stream, Term term) {
    stream.Launch([this, term] {
      const int64_t now_us = base::SystemClock().NowUs();
      us_[static_cast<size_t>(term)] += static_cast<double>(now_us - last_us_);
      last_us_ = now_us;
      return absl::OkStatus();
    });
  }

  double us(Term term) const { return us_[static_cast<size_t>(term)]; }

 private:
  int64_t last_us_ = 0;
  std::array<double, static_cast<size_t>(Term::kCount)> us_{};
};

}  // namespace tandem::gpu_worker
