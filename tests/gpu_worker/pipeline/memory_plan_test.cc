#include "gpu_worker/pipeline/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/model_shape/known_shapes.h"

namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

ModelShape Shape() {
  ModelShape shape = Llama31Of8B();
  shape.max_position = 8192;
  return shape;
}

PipelineOptions Options() {
  PipelineOptions options;
  options.device = "cuda";
  options.compute_dtype = DType::kBFloat16;
  options.cpu_kv_bytes = kGiB;
  return options;
}

TEST(MemoryPlanTest, CountsWhatAModelTakes) {
  const MemoryPlan plan = PlanMemory(Options(), Shape(), 8192);
  // 8.03 billion parameters of two bytes, but for the norms, which have four.
  EXPECT_NEAR(static_cast<double>(plan.weights_bytes), 16.06e9, 0.01e9);
  // A layer of the longest prompt, and blocks of 128 tokens that move, in each direction.
  EXPECT_EQ(plan.staging_bytes, uint64_t{8192} * 2 * 1024 * 2 + 2 * (uint64_t{32} << 20));
  EXPECT_GT(plan.activations_bytes, uint64_t{2048} * (4096 + 6144) * 4);
  EXPECT_LT(plan.activations_bytes, kGiB);
  EXPECT_GT(plan.graphs_bytes, uint64_t{1} << 20);
  PipelineOptions eager = Options();
  eager.enforce_eager = true;
  EXPECT_EQ(PlanMemory(eager, Shape(), 8192).graphs_bytes, 0u);
}

TEST(MemoryPlanTest, DevicesShareOutAllButTheEmbedding) {
  const MemoryPlan one = PlanMemory(Options(), Shape(), 8192);
  PipelineOptions options = Options();
  options.tensor_parallel_size = 4;
  const MemoryPlan plan = PlanMemory(options, Shape(), 8192);
  const double table = 128256.0 * 4096 * 2;
  EXPECT_NEAR(static_cast<double>(plan.weights_bytes),
              (static_cast<double>(one.weights_bytes) - table) / 4 + table, 0.01e9);
  const uint64_t moves = 2 * (uint64_t{32} << 20);  // whose areas have no smaller size
  EXPECT_EQ(plan.staging_bytes - moves, (one.staging_bytes - moves) / 4);
  EXPECT_EQ(plan.graphs_bytes, one.graphs_bytes);
  EXPECT_LT(plan.activations_bytes, one.activations_bytes);
}

TEST(MemoryPlanTest, WithoutACpuTierNothingIsStaged) {
  PipelineOptions options = Options();
  options.cpu_kv_bytes = 0;
  EXPECT_EQ(PlanMemory(options, Shape(), 8192).staging_bytes, 0u);
}

TEST(MemoryPlanTest, ThePoolGetsWhatIsLeftOfTheShare) {
  const MemoryPlan plan = PlanMemory(Options(), Shape(), 8192);
  const device::MemoryInfo memory{23 * kGiB, 24 * kGiB};
  const auto usable = static_cast<uint64_t>(24 * kGiB * 0.9);
  EXPECT_EQ(PlannedPoolBytes(plan, memory, 0.9), usable - kGiB - plan.fixed_bytes());
  EXPECT_TRUE(CheckMemoryPlan(plan, memory, 0.9).ok());
}

TEST(MemoryPlanTest, WhatDoesNotFitSaysWhatToLower) {
  const MemoryPlan plan = PlanMemory(Options(), Shape(), 8192);
  const device::MemoryInfo memory{15 * kGiB, 16 * kGiB};
  EXPECT_EQ(PlannedPoolBytes(plan, memory, 0.9), 0u);
  const absl::Status status = CheckMemoryPlan(plan, memory, 0.9);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-num-batched-tokens"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--gpu-memory-utilization"));
}

}  // namespace
}  // namespace tandem::gpu_worker
