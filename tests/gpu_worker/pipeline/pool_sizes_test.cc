#include "gpu_worker/pipeline/pool_sizes.h"

#include "gtest/gtest.h"

namespace tandem::gpu_worker {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

ModelShape Shape() {
  ModelShape shape;
  shape.num_layers = 30;
  shape.hidden_size = 576;
  shape.intermediate_size = 1536;
  shape.num_q_heads = 9;
  shape.num_kv_heads = 3;
  shape.head_dim = 64;
  shape.vocab_size = 49152;
  shape.max_position = 8192;
  return shape;
}

PipelineOptions Options() {
  PipelineOptions options;
  options.compute_dtype = DType::kBFloat16;
  options.cpu_kv_dtype = DType::kBFloat16;
  return options;
}

TEST(PoolSizesTest, HostTakesAFifthUpToFourGiB) {
  const auto some = ComputePoolSizes(Options(), Shape(), {kGiB, 2 * kGiB});
  ASSERT_TRUE(some.ok()) << some.status();
  const uint64_t block = 30 * 3 * 2 * 16 * 64 * 2;
  EXPECT_EQ(some->gpu.block_bytes(), block);
  EXPECT_EQ(some->num_gpu_blocks, static_cast<int32_t>(kGiB / 5 / block));
  EXPECT_EQ(some->num_cpu_blocks, 0);
  EXPECT_EQ(some->max_model_len, 8192);
  const auto much = ComputePoolSizes(Options(), Shape(), {200 * kGiB, 200 * kGiB});
  ASSERT_TRUE(much.ok());
  EXPECT_EQ(much->num_gpu_blocks, static_cast<int32_t>(4 * kGiB / block));
}

TEST(PoolSizesTest, NeverMoreThanTheSequencesNeed) {
  PipelineOptions options = Options();
  options.max_num_seqs = 3;
  options.max_model_len = 100;
  options.cpu_kv_bytes = kGiB;
  const auto sizes = ComputePoolSizes(options, Shape(), {20 * kGiB, 20 * kGiB});
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->num_gpu_blocks, 3 * 7);
  EXPECT_EQ(sizes->num_cpu_blocks, 3);
  EXPECT_EQ(sizes->staging_blocks, 7);
}

TEST(PoolSizesTest, OverrideIsTakenOrRefused) {
  PipelineOptions options = Options();
  options.num_gpu_blocks = 77;
  const auto sizes = ComputePoolSizes(options, Shape(), {kGiB, kGiB});
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->num_gpu_blocks, 77);
  options.num_gpu_blocks = 2'000'000'000;
  const auto refused = ComputePoolSizes(options, Shape(), {kGiB, kGiB});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("--num-gpu-blocks-override"), std::string::npos);
}

TEST(PoolSizesTest, CpuPoolOfAbsurdOrTinySizeIsRefused) {
  PipelineOptions options = Options();
  options.cpu_kv_bytes = uint64_t{900} << 40;
  const auto absurd = ComputePoolSizes(options, Shape(), {kGiB, kGiB});
  EXPECT_EQ(absurd.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(absurd.status().message().find("--cpu-kv-size"), std::string::npos);
  options.cpu_kv_bytes = 1000;
  EXPECT_EQ(ComputePoolSizes(options, Shape(), {kGiB, kGiB}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PoolSizesTest, BadOptionsNameTheFlag) {
  PipelineOptions options = Options();
  options.block_tokens = 24;
  EXPECT_NE(
      ComputePoolSizes(options, Shape(), {kGiB, kGiB}).status().message().find("--block-size"),
      std::string::npos);
  options = Options();
  options.max_model_len = 9000;
  EXPECT_NE(
      ComputePoolSizes(options, Shape(), {kGiB, kGiB}).status().message().find("--max-model-len"),
      std::string::npos);
  EXPECT_EQ(ComputePoolSizes(Options(), Shape(), {1000, 1000}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(PoolSizesTest, StagingHoldsTheLongestSequenceOfTheCpuPool) {
  PipelineOptions options = Options();
  options.cpu_kv_bytes = 2 * uint64_t{30 * 3 * 2 * 128 * 64 * 2};
  const auto sizes = ComputePoolSizes(options, Shape(), {kGiB, kGiB});
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->num_cpu_blocks, 2);
  EXPECT_EQ(sizes->staging_blocks, 16);
}

}  // namespace
}  // namespace tandem::gpu_worker
