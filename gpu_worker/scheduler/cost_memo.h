#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/cost_model/predictor.h"

namespace tandem::gpu_worker {

// Corrected costs of a layer, remembered: comparing placements asks for the same few again and
// again. It refers to `predictor` and `corrections`. One thread.
class CostMemo {
 public:
  struct CpuDecodes {
    double decode_us = 0;
    double transfer_us = 0;
  };

  CostMemo(const Predictor& predictor, const Corrections& corrections)
      : predictor_(predictor), corrections_(corrections) {}

  // `tokens_before[i]`: context tokens of the first i CPU decodes. It must live on unchanged.
  void Start(std::span<const int64_t> tokens_before) {
    tokens_before_ = tokens_before;
    linear_.assign(kEntries, {});
    decodes_.assign(kEntries, {});
  }

  // The dense stages for `rows` token rows.
  double LinearUs(int64_t rows) {
    Linear& entry = linear_[static_cast<uint64_t>(rows) % kEntries];
    if (entry.rows != rows) {
      entry = {rows, corrections_.linear * predictor_.model().LinearUs(rows)};
    }
    return entry.us;
  }

  // CPU decodes `begin` to `end`. Valid until the next call.
  const CpuDecodes& Of(size_t begin, size_t end) {
    constexpr uint64_t kSpread = 0x9E3779B97F4A7C15;  // spreads keys over the upper bits
    const uint64_t key = uint64_t{begin} << 32 | end;
    Decodes& entry = decodes_[key * kSpread >> (64 - kEntryBits)];
    if (entry.key != key) {
      const auto count = static_cast<int64_t>(end - begin);
      const int64_t tokens = tokens_before_[end] - tokens_before_[begin];
      entry = {key,
               {predictor_.CpuDecodeUs(count, tokens, corrections_),
                corrections_.copies * predictor_.model().TransferUs(count)}};
    }
    return entry.us;
  }

 private:
  static constexpr int kEntryBits = 10;
  static constexpr size_t kEntries = size_t{1} << kEntryBits;
  struct Linear {
    int64_t rows = -1;
    double us = 0;
  };
  struct Decodes {
    uint64_t key = ~uint64_t{0};
    CpuDecodes us;
  };

  const Predictor& predictor_;
  const Corrections& corrections_;
  std::span<const int64_t> tokens_before_;
  std::vector<Linear> linear_;
  std::vector<Decodes> decodes_;
};

}  // namespace tandem::gpu_worker
