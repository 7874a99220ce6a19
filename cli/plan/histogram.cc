#include "cli/plan/histogram.h"

#include <algorithm>
#include <cmath>

namespace tandem::cli {
namespace {

const double kLogGrowth = std::log(1.02);

}  // namespace

void Histogram::Add(double value) {
  const double bucket = value > 1 ? std::log(value) / kLogGrowth : 0;
  ++counts_[static_cast<size_t>(std::min<double>(bucket, kBuckets - 1))];
  ++count_;
  sum_ += value;
}

double Histogram::Percentile(double percent) const {
  const double wanted = percent / 100 * static_cast<double>(count_);
  int64_t seen = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    seen += counts_[i];
    if (counts_[i] > 0 && static_cast<double>(seen) >= wanted) {
      return std::exp((static_cast<double>(i) + 0.5) * kLogGrowth);
    }
  }
  return 0;
}

}  // namespace tandem::cli
