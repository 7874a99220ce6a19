#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/gpu_worker/scheduler/state_builder.h"

namespace tandem::gpu_worker {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

// Pools that hold a prompt of many steps' budgets.
StateBuilder LargePools() {
  StateBuilder builder;
  builder.state.gpu = {1000, 1000, 1000, 16};
  builder.state.cpu = {200, 200, 200, 128};
  return builder;
}

MeasuredRates SlowCpu() {
  MeasuredRates rates = SteadyRates();
  rates.cpu_attention_bytes_per_us = 20;
  return rates;
}

TEST(SchedulerRulesTest, ALongPromptLeavesHalfOfTheBudgetToOthers) {
  StateBuilder builder = LargePools();
  const uint64_t long_prompt = builder.GpuPrefill(9'000, 0);
  SchedulerConfig config = Config(OffloadPolicy::kOff);  // 512 rows a step
  EXPECT_EQ(FindWork(builder.Plan(config), long_prompt)->num_tokens, 512) << "alone it has all";
  const uint64_t behind = builder.Waiting(101);
  StepPlan plan = builder.Plan(config);
  ASSERT_NE(FindWork(plan, behind), nullptr);
  EXPECT_EQ(FindWork(plan, behind)->num_tokens, 101);
  EXPECT_EQ(FindWork(plan, long_prompt)->num_tokens, 411) << "and what the other one left";
  builder.Waiting(400);
  plan = builder.Plan(config);
  EXPECT_EQ(FindWork(plan, long_prompt)->num_tokens, 256);
}

TEST(SchedulerRulesTest, APromptOfTwoStepsDoesNotShare) {
  StateBuilder builder = LargePools();
  const uint64_t prompt = builder.GpuPrefill(1'000, 0);
  const uint64_t behind = builder.Waiting(101);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kOff));
  EXPECT_EQ(FindWork(plan, prompt)->num_tokens, 512);
  EXPECT_EQ(FindWork(plan, behind), nullptr);
}

// A step of decodes takes 10 ms, each prefill row 0.1 ms.
TEST(SchedulerRulesTest, DecodesKeepHalfTheirSpeedBesideALongPrompt) {
  StateBuilder builder = LargePools();
  builder.GpuDecode(100);
  const uint64_t long_prompt = builder.GpuPrefill(9'000, 2'000);
  builder.view(long_prompt).last_progress_step = builder.state.step_index;
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kOff));
  ASSERT_NE(FindWork(plan, long_prompt), nullptr);
  EXPECT_GE(FindWork(plan, long_prompt)->num_tokens, 64);
  EXPECT_LT(FindWork(plan, long_prompt)->num_tokens, 256);
  EXPECT_LT(plan.predicted.total_us, 2.1 * 10e3);
}

TEST(SchedulerRulesTest, StepsThatALongPromptSatOutCountForIt) {
  StateBuilder builder = LargePools();
  builder.GpuDecode(100);
  const uint64_t long_prompt = builder.GpuPrefill(9'000, 2'000);
  MeasuredRates rates = SteadyRates();
  rates.flops_per_us = 2e6;  // 1 ms a row: 64 of them are longer than two steps
  builder.view(long_prompt).last_progress_step = builder.state.step_index;
  EXPECT_EQ(FindWork(builder.Plan(Config(OffloadPolicy::kOff), rates), long_prompt), nullptr);
  builder.view(long_prompt).last_progress_step = builder.state.step_index - 12;
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kOff), rates);
  ASSERT_NE(FindWork(plan, long_prompt), nullptr);
  EXPECT_LT(plan.predicted.total_us, 14.1 * 10e3);
}

TEST(SchedulerRulesTest, TheTargetBoundsCpuDecodesToo) {
  StateBuilder builder = LargePools();
  for (int i = 0; i < 4; ++i) {
    builder.GpuDecode(100);
  }
  for (int i = 0; i < 24; ++i) {
    builder.CpuDecode(1'000);
  }
  SchedulerConfig config = Config(OffloadPolicy::kAuto);
  config.max_swap_ins_per_step = 0;
  const StepPlan free = builder.Plan(config);
  config.max_step_us = 24'000;
  const StepPlan bounded = builder.Plan(config);
  EXPECT_GT(free.predicted.total_us, 24'000);
  EXPECT_LE(bounded.predicted.total_us, 24'000);
  EXPECT_LT(bounded.progress, free.progress);
  EXPECT_GT(bounded.progress, 4);
}

TEST(SchedulerRulesTest, TheYoungestMovesBeforeTheOthersLackBlocks) {
  StateBuilder builder;
  builder.GpuDecode(16 * 30);  // needs a block in the next step, and none is free then
  builder.GpuDecode(16 * 20 - 5);
  builder.GpuDecode(16 * 14 - 5);
  ASSERT_EQ(builder.state.gpu.free_blocks, 0);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  ASSERT_THAT(plan.moves, SizeIs(1));
  EXPECT_EQ(plan.moves[0].sequence_id, 3u);
  EXPECT_NE(FindWork(plan, 1), nullptr) << "nobody else loses a step";
  EXPECT_NE(FindWork(plan, 2), nullptr);
  EXPECT_THAT(builder.Plan(Config(OffloadPolicy::kOff)).recompute, IsEmpty())
      << "recomputing is not done before it has to be";
}

TEST(SchedulerRulesTest, AFreePlaceGoesToAPromptWhileTheCpuKeepsUp) {
  StateBuilder builder;
  builder.GpuDecode(300);
  const uint64_t on_cpu = builder.CpuDecode(100);
  const uint64_t waiting = builder.Waiting(50);
  StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  EXPECT_THAT(plan.moves, IsEmpty());
  ASSERT_NE(FindWork(plan, waiting), nullptr);
  EXPECT_EQ(FindWork(plan, waiting)->tier, Tier::kGpu);
  builder.view(on_cpu).last_progress_step = builder.state.step_index - 8;
  EXPECT_THAT(builder.Plan(Config(OffloadPolicy::kAuto)).moves, SizeIs(1)) << "it does not keep up";
}

TEST(SchedulerRulesTest, WhatASlowCpuHoldsComesBackBeforeOthersAreAdmitted) {
  StateBuilder builder;
  builder.GpuDecode(16 * 30);
  const uint64_t on_cpu = builder.CpuDecode(16 * 32 + 1);  // 33 blocks, with 3 free too few
  const uint64_t waiting = builder.Waiting(50);
  StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto), SlowCpu());
  EXPECT_THAT(plan.moves, IsEmpty());
  EXPECT_EQ(FindWork(plan, waiting), nullptr) << "the room is promised";
  EXPECT_EQ(FindWork(plan, on_cpu), nullptr);
  EXPECT_NE(FindWork(builder.Plan(Config(OffloadPolicy::kAuto)), waiting), nullptr)
      << "beside a fast CPU it is not";
}

TEST(SchedulerRulesTest, OneThatFitsNoDeviceDoesNotKeepOthersFromComingBack) {
  StateBuilder builder;
  builder.CpuDecode(64 * 16 + 1);
  const uint64_t small = builder.CpuDecode(100);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  ASSERT_THAT(plan.moves, SizeIs(1));
  EXPECT_EQ(plan.moves[0].sequence_id, small);
}

TEST(SchedulerRulesTest, OnTheDeviceAlonePromptsKeepThePaceWhileOthersWait) {
  StateBuilder builder;
  builder.state.mix = {.prompt_tokens = 200, .output_tokens = 20};
  for (int i = 0; i < 3; ++i) {
    builder.GpuDecode(200);
  }
  const uint64_t prompt = builder.GpuPrefill(300, 0);
  SchedulerConfig config = Config(OffloadPolicy::kAuto);
  EXPECT_EQ(FindWork(builder.Plan(config, SlowCpu()), prompt)->num_tokens, 300) << "nobody waits";
  builder.Waiting(200);
  const SteadyState steady =
      Scheduler(config, MakeRooflineCostModel(SlowCpu())).Study(builder.Build());
  EXPECT_GT(steady.alone_rows, 64);
  EXPECT_LT(steady.alone_rows, 300);
  EXPECT_EQ(FindWork(builder.Plan(config, SlowCpu()), prompt)->num_tokens, steady.alone_rows);
  config.switches.chunk_balancing = false;
  EXPECT_EQ(FindWork(builder.Plan(config, SlowCpu()), prompt)->num_tokens, 300);
}

TEST(SchedulerRulesTest, NoPaceWhereItGainsNothing) {
  StateBuilder builder;
  builder.state.mix = {.prompt_tokens = 20, .output_tokens = 400};  // weights are all that counts
  SchedulerConfig config = Config(OffloadPolicy::kAuto);
  const SteadyState steady =
      Scheduler(config, MakeRooflineCostModel(SlowCpu())).Study(builder.Build());
  EXPECT_EQ(steady.alone_rows, config.max_num_batched_tokens);
}

// Sequences on the CPU come on top of those that fill the device: together no more than may run.
TEST(SchedulerRulesTest, NoCpuTierWhereTheDeviceHoldsAllThatMayRun) {
  StateBuilder builder = LargePools();
  builder.state.mix = {.prompt_tokens = 100, .output_tokens = 100};
  for (int i = 0; i < 64; ++i) {
    builder.Waiting(100);
  }
  SchedulerConfig config = Config(OffloadPolicy::kAuto);
  const Scheduler scheduler(config, MakeRooflineCostModel(SteadyRates()));
  EXPECT_EQ(scheduler.Study(builder.Build()).cpu_target, 0);
  builder.state.gpu = {200, 200, 200, 16};
  EXPECT_GT(scheduler.Study(builder.Build()).cpu_target, 0);
}

TEST(SchedulerRulesTest, TheCpuTierIsFilledToItsTargetOnly) {
  StateBuilder builder;
  builder.state.cpu = {200, 200, 200, 128};
  builder.GpuDecode(500);
  builder.GpuDecode(500);
  const uint64_t waiting = builder.Waiting(100);
  for (int i = 0; i < 60; ++i) {
    builder.Waiting(100);
  }
  SchedulerConfig config = Config(OffloadPolicy::kAuto);
  EXPECT_EQ(FindWork(builder.Plan(config), waiting)->tier, Tier::kCpu);
  const SteadyState steady =
      Scheduler(config, MakeRooflineCostModel(SteadyRates())).Study(builder.Build());
  ASSERT_GT(steady.cpu_target, 4);
  EXPECT_GT(steady.gain, 1.5);
  EXPECT_GT(steady.ramp.row_us, 0);
  for (int i = 0; i < steady.cpu_target; ++i) {
    builder.CpuDecode(100);
  }
  EXPECT_EQ(FindWork(builder.Plan(config), waiting), nullptr);
  const SteadyState slow =
      Scheduler(config, MakeRooflineCostModel(SlowCpu())).Study(builder.Build());
  EXPECT_EQ(slow.cpu_target, 0);
  EXPECT_EQ(slow.gain, 1);
}

// Beside enough prefill each row in A costs time; in B it comes with reading the weights.
TEST(SchedulerRulesTest, DeviceDecodesGoToBWhereTheirRowsCost) {
  StateBuilder builder = LargePools();
  for (int i = 0; i < 24; ++i) {
    builder.GpuDecode(100);
    builder.CpuDecode(400);
  }
  SchedulerConfig config = Config(OffloadPolicy::kAuto);
  config.max_swap_ins_per_step = 0;
  config.switches.unified = false;
  StepPlan plan = builder.Plan(config);
  for (const PlannedWork& work : plan.sub_batch[1]) {
    EXPECT_EQ(work.tier, Tier::kCpu) << "without prefill there is nothing to gain";
  }
  builder.GpuPrefill(400, 0);
  plan = builder.Plan(config);
  ASSERT_EQ(plan.mode, StepMode::kAsymmetric);
  size_t on_gpu = 0;
  for (const PlannedWork& work : plan.sub_batch[1]) {
    on_gpu += work.tier == Tier::kGpu ? 1 : 0;
  }
  EXPECT_GE(on_gpu, 12u);
  for (uint64_t id = 1; id <= 48; id += 2) {
    EXPECT_NE(FindWork(plan, id), nullptr) << "all of them run";
  }
}

// Enough rows in each sub-batch: neither is held up by the weights, both hide the CPU's work.
TEST(SchedulerRulesTest, PrefillGoesToBothSubBatches) {
  StateBuilder builder = LargePools();
  builder.state.mix.prompt_tokens = 1000;
  builder.state.mix.output_tokens = 60;
  for (int i = 0; i < 24; ++i) {
    builder.CpuDecode(400);
  }
  const uint64_t first = builder.GpuPrefill(1000, 0);
  const uint64_t second = builder.CpuPrefill(1000, 200);
  SchedulerConfig config = Config(OffloadPolicy::kAuto);
  config.max_swap_ins_per_step = 0;
  config.max_num_batched_tokens = 2048;
  config.switches.unified = false;
  StepPlan plan = builder.Plan(config);
  ASSERT_EQ(plan.mode, StepMode::kAsymmetric);
  EXPECT_EQ(SubBatchOf(plan, first), 0);
  EXPECT_EQ(SubBatchOf(plan, second), 1);
  EXPECT_GT(FindWork(plan, first)->num_tokens, 100);
  EXPECT_GT(FindWork(plan, second)->num_tokens, 100);
  for (uint64_t id = 1; id <= 24; ++id) {
    EXPECT_NE(FindWork(plan, id), nullptr) << "all of them run";
  }
  config.switches.chunk_balancing = false;
  EXPECT_EQ(SubBatchOf(builder.Plan(config), second), 0);
}

TEST(SchedulerRulesTest, SwitchesTakeModesAway) {
  StateBuilder builder;
  for (int i = 0; i < 4; ++i) {
    builder.GpuDecode(200);
    builder.CpuDecode(100);
  }
  SchedulerConfig config = Config(OffloadPolicy::kAuto);
  config.max_swap_ins_per_step = 0;
  config.switches.unified = false;
  EXPECT_NE(builder.Plan(config).mode, StepMode::kUnified);
  config.switches = SchedulerSwitches();
  config.switches.asymmetric = false;
  EXPECT_NE(builder.Plan(config).mode, StepMode::kAsymmetric);
  config.switches = SchedulerSwitches();
  config.switches.guard = false;
  builder.state.offload_pays = false;
  EXPECT_NE(builder.Plan(config).mode, StepMode::kGpuOnly);
}

}  // namespace
}  // namespace tandem::gpu_worker
