#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace tandem {

// Figures of the benchmarks in this folder.

inline double Microseconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

// The value below which `share` of them lie; 0 of none.
inline double Quantile(std::vector<double> values, double share) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

}  // namespace tandem
