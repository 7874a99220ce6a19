#include "gpu_worker/cost_model/profile_cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model_shape/known_shapes.h"

namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;

std::unique_ptr<CostModel> Model(const ProfileCostOptions& options, const char* name = "a10g") {
  auto model = MakeProfileCostModel(*BuiltInDeviceProfile(name), Llama31Of8B(), options);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

TEST(ProfileCostModel, SizesOfLlama8B) {
  // The published 8.03 B parameters, less the norms.
  EXPECT_NEAR(WeightBytes(Llama31Of8B(), DType::kBFloat16) / 2, 8.03e9, 0.01e9);
  EXPECT_EQ(KvBytesPerToken(Llama31Of8B(), DType::kBFloat16), 131072);
  EXPECT_EQ(KvBytesPerToken(Llama31Of8B(), DType::kInt8), 65536 + 2 * 32 * 8 * 4);
}

TEST(ProfileCostModel, FewRowsCostTheWeightsAndManyTheirFlops) {
  const auto model = Model({});
  const double weights_us =
      (WeightBytes(Llama31Of8B(), DType::kBFloat16) - 2.0 * 128256 * 4096) / 32 / (600e3 * 0.85);
  EXPECT_NEAR(model->LinearUs(1), weights_us, 0.02 * weights_us);
  EXPECT_LT(model->LinearUs(32), 1.05 * model->LinearUs(1));
  const double flops_us = 2048 * 2.0 * 6.98e9 / 32 / (70e6 * 0.8);
  EXPECT_GT(model->LinearUs(2048), flops_us);
  EXPECT_LT(model->LinearUs(2048), 1.15 * flops_us);
  EXPECT_EQ(model->LinearUs(0), 0);
}

TEST(ProfileCostModel, CpuDecodeFollowsBandwidthAndKvType) {
  ProfileCostOptions options;
  options.cpu_attention_bytes_per_us = 50e3;
  const auto wide = Model(options);
  const double exchange_us = BuiltInDeviceProfile("a10g")->host_exchange_us;
  EXPECT_NEAR(wide->CpuDecodeUs(10, 10'000) - exchange_us, 10'000 * 4096 / 50e3, 1e-6);
  options.cpu_kv_dtype = DType::kInt8;
  EXPECT_NEAR(Model(options)->CpuDecodeUs(10, 10'000) - exchange_us, 10'000 * 2112 / 50e3, 1e-6);
  EXPECT_EQ(wide->CpuDecodeUs(0, 0), 0);
}

TEST(ProfileCostModel, EagerLaunchesHoldUpShortLayersOnly) {
  ProfileCostOptions options;
  options.compute_dtype = DType::kBFloat16;
  options.tensor_parallel = 8;
  const auto graphs = Model(options, "h100");
  options.graphs = false;
  const auto eager = Model(options, "h100");
  EXPECT_GE(eager->LinearUs(1), 9 * BuiltInDeviceProfile("h100")->gpu_eager_launch_us);
  EXPECT_GE(eager->LinearUs(1), graphs->LinearUs(1));
  EXPECT_EQ(eager->LinearUs(4096), graphs->LinearUs(4096));
}

TEST(ProfileCostModel, TensorParallelSharesTheLayer) {
  ProfileCostOptions options;
  const auto one = Model(options, "h100");
  options.tensor_parallel = 2;
  const auto two = Model(options, "h100");
  EXPECT_LT(two->LinearUs(1), one->LinearUs(1));
  EXPECT_GT(two->LinearUs(1), one->LinearUs(1) / 2);  // the sums over both GPUs cost
  const double launch_us = BuiltInDeviceProfile("h100")->gpu_graph_launch_us;
  EXPECT_DOUBLE_EQ(two->GpuDecodeUs(4, 4000) - launch_us,
                   (one->GpuDecodeUs(4, 4000) - launch_us) / 2);
  EXPECT_DOUBLE_EQ(two->CpuDecodeUs(4, 4000), one->CpuDecodeUs(4, 4000));
}

TEST(ProfileCostModel, ImpossibleCombinationsNameTheField) {
  ProfileCostOptions options;
  options.compute_dtype = DType::kBFloat16;
  auto model = MakeProfileCostModel(*BuiltInDeviceProfile("t4"), Llama31Of8B(), options);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("gpu.tflops.bfloat16"));
  options.compute_dtype = DType::kFloat16;
  options.tensor_parallel = 3;
  model = MakeProfileCostModel(*BuiltInDeviceProfile("t4"), Llama31Of8B(), options);
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("tensor_parallel is 3"));
  ModelShape shape = Llama31Of8B();
  shape.num_layers = 0;
  model = MakeProfileCostModel(*BuiltInDeviceProfile("t4"), shape, {});
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("num_hidden_layers"));
}

}  // namespace
}  // namespace tandem::gpu_worker
