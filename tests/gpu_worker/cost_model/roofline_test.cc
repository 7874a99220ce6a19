#include <gtest/gtest.h>

#include "gpu_worker/cost_model/cost_model.h"

namespace tandem::gpu_worker {
namespace {

MeasuredRates Rates() {
  MeasuredRates rates;
  rates.num_layers = 10;
  rates.weight_bytes = 1e6;
  rates.memory_bytes_per_us = 1e3;  // 100 us a layer
  rates.flops_per_token = 2e6;
  rates.flops_per_us = 2e4;  // 10 us a row and layer
  rates.attention_bytes_per_us = 100;
  rates.cpu_attention_bytes_per_us = 50;
  rates.kv_bytes_per_token_layer = 10;
  rates.cpu_kv_bytes_per_token_layer = 10;
  rates.copy_bytes_per_us = 20;
  rates.overlap = 0.5;
  return rates;
}

TEST(RooflineTest, LinearIsFlatWhileItReadsWeightsAndThenGrows) {
  const auto model = MakeRooflineCostModel(Rates());
  EXPECT_EQ(model->LinearUs(0), 0);
  EXPECT_DOUBLE_EQ(model->LinearUs(1), 100);
  EXPECT_DOUBLE_EQ(model->LinearUs(10), 100);
  EXPECT_DOUBLE_EQ(model->LinearUs(20), 200);
}

TEST(RooflineTest, AttentionFollowsTheBytesOfTheCache) {
  const auto model = MakeRooflineCostModel(Rates());
  EXPECT_DOUBLE_EQ(model->GpuDecodeUs(2, 1000), 100);
  EXPECT_EQ(model->CpuDecodeUs(0, 0), 0);
  EXPECT_DOUBLE_EQ(model->CpuDecodeUs(2, 2000) - model->CpuDecodeUs(2, 1000), 200);
  EXPECT_GT(model->CpuDecodeUs(1, 1), 0.2) << "the round trip through the exchange";
  EXPECT_DOUBLE_EQ(model->CopyUs(100), 50);
}

TEST(RooflineTest, PrefillGrowsWithChunkAndContext) {
  const auto model = MakeRooflineCostModel(Rates());
  EXPECT_GT(model->PrefillUs(200, 0), model->PrefillUs(100, 0) * 2);
  EXPECT_GT(model->PrefillUs(100, 5000), model->PrefillUs(100, 0));
}

TEST(RooflineTest, UnknownRatesCostNothing) {
  const auto model = MakeRooflineCostModel(MeasuredRates());
  EXPECT_EQ(model->num_layers(), 1);
  EXPECT_EQ(model->LinearUs(100), 0);
  EXPECT_EQ(model->PrefillUs(100, 100), 0);
  EXPECT_EQ(model->CpuDecodeUs(4, 100), 0);
  EXPECT_EQ(model->TransferUs(10), 0);
}

}  // namespace
}  // namespace tandem::gpu_worker
