#pragma once

#include <cstdint>

namespace tandem::gpu_worker::device {

// Time as an emulated device needs it: microseconds of base::SystemClock, and waiting for a point
// of it. Thread-safe.
class PaceClock {
 public:
  virtual ~PaceClock() = default;
  virtual double NowUs() const = 0;
  // Returns at `time_us` or a little later; at once when it has passed.
  virtual void SleepUntil(double time_us) = 0;
};

// The machine's: sleeps most of the way and yields the rest, so that the overshoot is a few
// microseconds and a core is given away but for the last tens of them. Lives for ever.
PaceClock& RealPaceClock();

// For threads that play a device: they hardly compute, but what waits for them counts on a device's
// punctuality. Takes a real-time priority where that is allowed; best effort.
void RaisePacePriority();

}  // namespace tandem::gpu_worker::device
