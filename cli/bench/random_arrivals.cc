#include "cli/bench/random_arrivals.h"

#include <cmath>

namespace tandem::cli {

double SplitMix::Next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t x = state_;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
  return (static_cast<double>(x >> 11) + 0.5) * 0x1p-53;
}

int64_t RandomArrivals::NextUs() {
  now_us_ -= std::log(random_.Next()) * 1e6 / rate_;
  return static_cast<int64_t>(now_us_);
}

}  // namespace tandem::cli
