#pragma once

#include <cstdint>

namespace tandem::cli {

// SplitMix64: the same numbers on every machine. Not thread-safe.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 0x632be59bd9b4e019) {}
  // In (0, 1).
  double Next();

 private:
  uint64_t state_;
};

// Times of arrival at random (a Poisson process), one after the other. The same seed gives the same
// times, scaled by the rate, to the load generator and to the planner: what one measures the other
// can foresee.
class RandomArrivals {
 public:
  // `rate` per second, above 0.
  RandomArrivals(double rate, uint64_t seed) : rate_(rate), random_(seed + 1) {}
  int64_t NextUs();

 private:
  double rate_;
  SplitMix random_;
  double now_us_ = 0;
};

}  // namespace tandem::cli
