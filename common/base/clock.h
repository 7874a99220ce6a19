#pragma once

#include <cstdint>

namespace tandem::base {

// The only door to wall and monotonic time; pure parts get times as arguments. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, microseconds since an arbitrary start.
  virtual int64_t NowUs() const = 0;
  // The same in nanoseconds, for intervals of a few microseconds.
  virtual int64_t NowNs() const { return NowUs() * 1000; }
  // Unix time in microseconds.
  virtual int64_t UnixUs() const = 0;
};

// The machine's clocks; lives for ever.
const Clock& SystemClock();

}  // namespace tandem::base
