#include "gpu_worker/scheduler/cost_memo.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/gpu_worker/scheduler/state_builder.h"

namespace tandem::gpu_worker {
namespace {

// Far more questions than it has entries, each asked twice and between others.
TEST(CostMemoTest, EveryAnswerIsTheModels) {
  const Predictor predictor(MakeRooflineCostModel(SteadyRates()));
  Corrections corrections;
  corrections.linear = 1.5;
  corrections.cpu_decode = 0.7;
  corrections.cpu_fixed_us = 11;
  corrections.copies = 1.3;
  constexpr size_t kDecodes = 200;
  std::vector<int64_t> tokens_before = {0};
  for (size_t i = 0; i < kDecodes; ++i) {
    tokens_before.push_back(tokens_before.back() + 100 + static_cast<int64_t>(i * i % 97));
  }
  CostMemo memo(predictor, corrections);
  memo.Start(tokens_before);
  for (int round = 0; round < 2; ++round) {
    for (int64_t rows = 0; rows < 5000; rows += 7) {
      ASSERT_EQ(memo.LinearUs(rows), corrections.linear * predictor.model().LinearUs(rows));
    }
    for (size_t begin = 0; begin <= kDecodes; begin += 3) {
      for (size_t end = begin; end <= kDecodes; ++end) {
        const auto count = static_cast<int64_t>(end - begin);
        const CostMemo::CpuDecodes& decodes = memo.Of(begin, end);
        ASSERT_EQ(
            decodes.decode_us,
            predictor.CpuDecodeUs(count, tokens_before[end] - tokens_before[begin], corrections));
        ASSERT_EQ(decodes.transfer_us, corrections.copies * predictor.model().TransferUs(count));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_worker
