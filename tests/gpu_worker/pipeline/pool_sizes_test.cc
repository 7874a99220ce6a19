#include "gpu_worker/pipeline/pool_sizes.h"

#include "common/model_shape/known_shapes.h"
#include "gtest/gtest.h"

namespace tandem::gpu_worker {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

PipelineOptions Options() {
  PipelineOptions options;
  options.compute_dtype = DType::kBFloat16;
  options.cpu_kv_dtype = DType::kBFloat16;
  return options;
}

// The host as the device.
PoolMemory Shared(const device::MemoryInfo& memory) { return {memory, memory, true}; }

TEST(PoolSizesTest, HostTakesAFifthUpToFourGiB) {
  const auto some = ComputePoolSizes(Options(), SmolLm2Of135M(), Shared({kGiB, 2 * kGiB}));
  ASSERT_TRUE(some.ok()) << some.status();
  const uint64_t block = 30 * 3 * 2 * 16 * 64 * 2;
  EXPECT_EQ(some->gpu.block_bytes(), block);
  EXPECT_EQ(some->num_gpu_blocks, static_cast<int32_t>(kGiB / 5 / block));
  EXPECT_EQ(some->num_cpu_blocks, 0);
  EXPECT_EQ(some->max_model_len, 8192);
  const auto much = ComputePoolSizes(Options(), SmolLm2Of135M(), Shared({200 * kGiB, 200 * kGiB}));
  ASSERT_TRUE(much.ok());
  EXPECT_EQ(much->num_gpu_blocks, static_cast<int32_t>(4 * kGiB / block));
}

TEST(PoolSizesTest, ADeviceWithMemoryOfItsOwnUsesItsShare) {
  PipelineOptions options = Options();
  options.gpu_memory_utilization = 0.5;
  options.cpu_kv_bytes = kGiB;
  // Two of sixteen GiB are taken by weights: six are left of the half.
  const PoolMemory memory = {{14 * kGiB, 16 * kGiB}, {2 * kGiB, 4 * kGiB}, false};
  const auto sizes = ComputePoolSizes(options, SmolLm2Of135M(), memory);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->num_gpu_blocks, static_cast<int32_t>(6 * kGiB / sizes->gpu.block_bytes()));
  options.cpu_kv_bytes = 3 * kGiB;  // the host has two
  EXPECT_EQ(ComputePoolSizes(options, SmolLm2Of135M(), memory).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(PoolSizesTest, Float16ComputeKeepsBFloat16OnTheDevice) {
  PipelineOptions options = Options();
  options.compute_dtype = DType::kFloat16;
  const auto sizes = ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, kGiB}));
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->gpu.dtype, DType::kBFloat16);
}

TEST(PoolSizesTest, NeverMoreThanTheSequencesNeed) {
  PipelineOptions options = Options();
  options.max_num_seqs = 3;
  options.max_model_len = 100;
  options.cpu_kv_bytes = kGiB;
  const auto sizes = ComputePoolSizes(options, SmolLm2Of135M(), Shared({20 * kGiB, 20 * kGiB}));
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->num_gpu_blocks, 3 * 7);
  EXPECT_EQ(sizes->num_cpu_blocks, 3);
  EXPECT_EQ(sizes->staging_blocks, 7);
}

TEST(PoolSizesTest, OverrideIsTakenOrRefused) {
  PipelineOptions options = Options();
  options.num_gpu_blocks = 77;
  const auto sizes = ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, kGiB}));
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->num_gpu_blocks, 77);
  options.num_gpu_blocks = 2'000'000'000;
  const auto refused = ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, kGiB}));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("--num-gpu-blocks-override"), std::string::npos);
}

TEST(PoolSizesTest, CpuPoolOfAbsurdOrTinySizeIsRefused) {
  PipelineOptions options = Options();
  options.cpu_kv_bytes = uint64_t{900} << 40;
  const auto absurd = ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, kGiB}));
  EXPECT_EQ(absurd.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(absurd.status().message().find("--cpu-kv-size"), std::string::npos);
  options.cpu_kv_bytes = 1000;
  EXPECT_EQ(ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, kGiB})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PoolSizesTest, BadOptionsNameTheFlag) {
  PipelineOptions options = Options();
  options.block_tokens = 24;
  EXPECT_NE(ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, kGiB}))
                .status()
                .message()
                .find("--block-size"),
            std::string::npos);
  options = Options();
  options.max_model_len = 9000;
  EXPECT_NE(ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, kGiB}))
                .status()
                .message()
                .find("--max-model-len"),
            std::string::npos);
  EXPECT_EQ(ComputePoolSizes(Options(), SmolLm2Of135M(), Shared({1000, 1000})).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(PoolSizesTest, ReducedPrecisionHoldsMoreTokensInTheSameBytes) {
  const auto blocks = [](DType dtype) {
    PipelineOptions options = Options();
    options.cpu_kv_dtype = dtype;
    options.cpu_kv_bytes = kGiB;
    const auto sizes = ComputePoolSizes(options, SmolLm2Of135M(), Shared({20 * kGiB, 20 * kGiB}));
    EXPECT_TRUE(sizes.ok()) << sizes.status();
    EXPECT_EQ(sizes->gpu.dtype, DType::kBFloat16);
    return static_cast<uint64_t>(sizes->num_cpu_blocks);
  };
  constexpr uint64_t kTiles = 30 * 3 * 2;  // of a block
  EXPECT_EQ(blocks(DType::kFloat32), kGiB / (kTiles * 128 * 64 * 4));
  EXPECT_EQ(blocks(DType::kBFloat16), kGiB / (kTiles * 128 * 64 * 2));
  EXPECT_EQ(blocks(DType::kInt8), kGiB / (kTiles * (128 * 64 + 128 * 4)));
  EXPECT_EQ(blocks(DType::kFloat8E4M3), kGiB / (kTiles * 128 * 64));
}

TEST(PoolSizesTest, Float16ComputeStoresBFloat16) {
  PipelineOptions options = Options();
  options.compute_dtype = DType::kFloat16;
  const auto sizes = ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, 2 * kGiB}));
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  EXPECT_EQ(sizes->gpu.dtype, DType::kBFloat16);
}

TEST(PoolSizesTest, StagingHoldsTheLongestSequenceOfTheCpuPool) {
  PipelineOptions options = Options();
  options.cpu_kv_bytes = 2 * uint64_t{30 * 3 * 2 * 128 * 64 * 2};
  const auto sizes = ComputePoolSizes(options, SmolLm2Of135M(), Shared({kGiB, kGiB}));
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->num_cpu_blocks, 2);
  EXPECT_EQ(sizes->staging_blocks, 16);
}

}  // namespace
}  // namespace tandem::gpu_worker
