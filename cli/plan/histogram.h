#pragma once

#include <array>
#include <cstdint>

namespace tandem::cli {

// Counts of positive values in buckets that grow by 2%: percentiles of any number of values to a
// percent, without keeping them.
class Histogram {
 public:
  void Add(double value);
  double Mean() const { return count_ > 0 ? sum_ / static_cast<double>(count_) : 0; }
  // `percent` in [0, 100]; 0 of none.
  double Percentile(double percent) const;
  int64_t count() const { return count_; }

 private:
  static constexpr int kBuckets = 1600;  // from 1 to 1e13

  std::array<int64_t, kBuckets> counts_{};
  int64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace tandem::cli
