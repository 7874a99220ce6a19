#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu_worker/scheduler/state_builder.h"

namespace tandem::gpu_worker {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

SchedulerConfig Neo() { return Config(OffloadPolicy::kNeo); }

// A device pool so full that nothing moves back, and CPU sequences beside it.
StateBuilder BusyDevice(int gpu, int cpu) {
  StateBuilder builder;
  for (int i = 0; i < gpu; ++i) {
    builder.GpuDecode(900 / gpu);
  }
  for (int i = 0; i < cpu; ++i) {
    builder.CpuDecode(120);
  }
  return builder;
}

TEST(PlannerNeoTest, FillsBothSubBatchesWhileTheInequalitiesHold) {
  StateBuilder builder = BusyDevice(4, 12);
  const StepPlan plan = builder.Plan(Neo());
  EXPECT_EQ(plan.mode, StepMode::kAsymmetric);
  EXPECT_EQ(plan.order, StageOrder::kPublished);
  EXPECT_FALSE(plan.sub_batch[1].empty());
  EXPECT_GT(plan.sub_batch[0].size(), 4u);
  EXPECT_EQ(plan.progress, 16);
}

TEST(PlannerNeoTest, NoCpuDecodeThatTheOtherSubBatchCannotHide) {
  StateBuilder builder = BusyDevice(4, 12);
  MeasuredRates rates = SteadyRates();
  rates.cpu_attention_bytes_per_us = 500;  // about 1 ms a layer each, against 0.5 ms of weights
  const StepPlan plan = builder.Plan(Neo(), rates);
  EXPECT_EQ(plan.mode, StepMode::kGpuOnly);
  EXPECT_THAT(plan.sub_batch[1], IsEmpty());
}

TEST(PlannerNeoTest, PassedOverVeryLongRunsAllTheSame) {
  StateBuilder builder = BusyDevice(4, 2);
  MeasuredRates rates = SteadyRates();
  rates.cpu_attention_bytes_per_us = 500;
  builder.view(5).last_progress_step = builder.state.step_index - 999;
  EXPECT_EQ(FindWork(builder.Plan(Neo(), rates), 5), nullptr);
  builder.state.step_index = 2000;
  builder.view(5).last_progress_step = 2000 - 1024;
  builder.view(6).last_progress_step = 1999;
  const StepPlan plan = builder.Plan(Neo(), rates);
  EXPECT_NE(FindWork(plan, 5), nullptr);
  EXPECT_EQ(FindWork(plan, 6), nullptr);
}

TEST(PlannerNeoTest, PromptsAreWhole) {
  StateBuilder builder;
  const uint64_t first = builder.Waiting(300);
  const uint64_t second = builder.Waiting(300);
  const StepPlan plan = builder.Plan(Neo());  // 512 tokens a step
  EXPECT_EQ(FindWork(plan, first)->num_tokens, 300);
  EXPECT_EQ(FindWork(plan, second), nullptr);
}

TEST(PlannerNeoTest, PromptsThatDoNotFitTheDeviceGoToTheCpu) {
  StateBuilder builder;
  builder.GpuDecode(850);
  const uint64_t fits = builder.Waiting(60);
  const uint64_t does_not = builder.Waiting(50);
  const uint64_t behind = builder.Waiting(20);
  const StepPlan plan = builder.Plan(Neo());
  EXPECT_EQ(FindWork(plan, fits)->tier, Tier::kGpu);
  ASSERT_NE(FindWork(plan, does_not), nullptr);
  EXPECT_EQ(FindWork(plan, does_not)->tier, Tier::kCpu);
  EXPECT_EQ(FindWork(plan, behind)->tier, Tier::kCpu) << "nobody overtakes into the device";
}

TEST(PlannerNeoTest, TheYoungestMovesOutAboveTheHighWatermark) {
  StateBuilder builder;
  builder.GpuDecode(16 * 31);
  builder.GpuDecode(16 * 30);  // 61 of 64 blocks: above 95%
  StepPlan plan = builder.Plan(Neo());
  ASSERT_THAT(plan.moves, SizeIs(1));
  EXPECT_EQ(plan.moves[0].sequence_id, 2u);
  EXPECT_NE(FindWork(plan, 1), nullptr) << "the others go on";
}

TEST(PlannerNeoTest, TheOldestMovesBackBelowTheLowWatermark) {
  StateBuilder builder;
  builder.GpuDecode(500);
  const uint64_t old = builder.CpuDecode(300);
  builder.CpuDecode(300);
  const StepPlan plan = builder.Plan(Neo());
  ASSERT_THAT(plan.moves, SizeIs(1));
  EXPECT_EQ(plan.moves[0].sequence_id, old);
  EXPECT_FALSE(plan.moves[0].to_cpu);
}

TEST(PlannerNeoTest, LastPrefillsAreDroppedWhileTheCpuWouldIdle) {
  StateBuilder builder;
  for (int i = 0; i < 4; ++i) {
    builder.GpuDecode(230);
    builder.CpuDecode(120);
  }
  std::vector<uint64_t> prompts;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back(builder.Waiting(150));
  }
  // The CPU is fast: hiding its decodes needs no dense work, so prompts beyond 128 rows wait.
  const StepPlan plan = builder.Plan(Neo());
  EXPECT_EQ(plan.mode, StepMode::kAsymmetric);
  EXPECT_NE(FindWork(plan, prompts[0]), nullptr);
  EXPECT_EQ(FindWork(plan, prompts[1]), nullptr);
  EXPECT_EQ(FindWork(plan, prompts[2]), nullptr);
}

TEST(PlannerNeoTest, WithoutDeviceWorkCpuDecodesStillRun) {
  StateBuilder builder;
  for (int i = 0; i < 3; ++i) {
    builder.CpuDecode(100);
  }
  builder.state.gpu.capacity_blocks = 0;
  builder.state.gpu.free_blocks = 0;
  builder.state.gpu.total_blocks = 0;
  const StepPlan plan = builder.Plan(Neo());
  EXPECT_EQ(plan.progress, 3);
  EXPECT_EQ(plan.mode, StepMode::kAsymmetric);
}

}  // namespace
}  // namespace tandem::gpu_worker
