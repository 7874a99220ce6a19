#include "gpu_worker/scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu_worker/scheduler/state_builder.h"

namespace tandem::gpu_worker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<uint64_t> MovedOut(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (const PlannedMove& move : plan.moves) {
    EXPECT_TRUE(move.to_cpu);
    ids.push_back(move.sequence_id);
  }
  return ids;
}

std::vector<uint64_t> MovedIn(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (const PlannedMove& move : plan.moves) {
    EXPECT_FALSE(move.to_cpu);
    ids.push_back(move.sequence_id);
  }
  return ids;
}

TEST(SchedulerTest, NothingToDoIsNoStep) {
  StateBuilder builder;
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  EXPECT_FALSE(plan.has_step());
  EXPECT_THAT(plan.recompute, IsEmpty());
}

TEST(SchedulerTest, DecodesComeBeforePrefillAndChunksTakeTheRest) {
  StateBuilder builder;
  const uint64_t decode = builder.GpuDecode(20);
  const uint64_t half_done = builder.GpuPrefill(100, 60);
  const uint64_t waiting = builder.Waiting(300);
  SchedulerConfig config = Config(OffloadPolicy::kOff);
  config.max_num_batched_tokens = 64;
  const StepPlan plan = builder.Plan(config);
  ASSERT_NE(FindWork(plan, decode), nullptr);
  EXPECT_FALSE(FindWork(plan, decode)->is_prefill);
  ASSERT_NE(FindWork(plan, half_done), nullptr);
  EXPECT_EQ(FindWork(plan, half_done)->num_tokens, 40);
  ASSERT_NE(FindWork(plan, waiting), nullptr);
  EXPECT_TRUE(FindWork(plan, waiting)->is_prefill);
  EXPECT_EQ(FindWork(plan, waiting)->num_tokens, 23);
  EXPECT_EQ(plan.mode, StepMode::kGpuOnly);
}

TEST(SchedulerTest, StartsNoFurtherPromptInASaturatedStep) {
  StateBuilder builder;
  const uint64_t half_done = builder.GpuPrefill(100, 60);
  const uint64_t first = builder.Waiting(30);
  const uint64_t second = builder.Waiting(30);
  SchedulerConfig config = Config(OffloadPolicy::kOff);
  config.saturating_rows = 70;
  const StepPlan plan = builder.Plan(config);
  ASSERT_NE(FindWork(plan, half_done), nullptr);
  ASSERT_NE(FindWork(plan, first), nullptr);
  EXPECT_EQ(FindWork(plan, first)->num_tokens, 30) << "whole, although it begins below 70";
  EXPECT_EQ(FindWork(plan, second), nullptr);
}

TEST(SchedulerTest, ALongPromptDoesNotSaturateTheStepForThoseBehindIt) {
  StateBuilder builder;
  builder.GpuPrefill(400, 16);
  const uint64_t behind = builder.Waiting(20);
  SchedulerConfig config = Config(OffloadPolicy::kOff);
  config.max_num_batched_tokens = 100;
  config.saturating_rows = 40;
  const StepPlan plan = builder.Plan(config);
  EXPECT_NE(FindWork(plan, behind), nullptr);
}

TEST(SchedulerTest, AdmissionIsFirstComeFirstServed) {
  StateBuilder builder;
  builder.GpuDecode(600);
  const uint64_t large = builder.Waiting(900);
  const uint64_t small = builder.Waiting(10);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kOff));
  EXPECT_EQ(FindWork(plan, large), nullptr) << "has to wait for room";
  EXPECT_EQ(FindWork(plan, small), nullptr) << "and nobody overtakes";
}

TEST(SchedulerTest, AdmissionStopsAtTheNumberOfSequences) {
  StateBuilder builder;
  builder.GpuDecode(20);
  builder.GpuDecode(20);
  const uint64_t first = builder.Waiting(10);
  const uint64_t second = builder.Waiting(10);
  SchedulerConfig config = Config(OffloadPolicy::kOff);
  config.max_num_seqs = 3;
  const StepPlan plan = builder.Plan(config);
  EXPECT_NE(FindWork(plan, first), nullptr);
  EXPECT_EQ(FindWork(plan, second), nullptr);
}

TEST(SchedulerTest, AnEmptyPoolTakesWhatItCanHold) {
  StateBuilder builder;
  const uint64_t whole_pool = builder.Waiting(64 * 16);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kOff));
  ASSERT_NE(FindWork(plan, whole_pool), nullptr);
  EXPECT_EQ(FindWork(plan, whole_pool)->num_tokens, 512);
}

TEST(SchedulerTest, ChunksEndAtTheBarrier) {
  StateBuilder builder;
  const uint64_t id = builder.Waiting(100);
  builder.view(id).chunk_barrier = 70;
  EXPECT_EQ(FindWork(builder.Plan(Config(OffloadPolicy::kOff)), id)->num_tokens, 70);
}

// A pool that is full to the last block, with the oldest sequence at a block's end.
StateBuilder FullPool() {
  StateBuilder builder;
  builder.GpuDecode(16 * 30 + 1);
  builder.GpuDecode(16 * 20 - 5);
  builder.GpuDecode(16 * 14 - 5);
  EXPECT_EQ(builder.state.gpu.free_blocks, 0);
  return builder;
}

TEST(SchedulerTest, WithoutCpuTierTheYoungestIsRecomputed) {
  StateBuilder builder = FullPool();
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kOff));
  EXPECT_THAT(plan.recompute, ElementsAre(3));
  EXPECT_NE(FindWork(plan, 1), nullptr) << "its block is free at once";
  EXPECT_EQ(FindWork(plan, 3), nullptr);
}

TEST(SchedulerTest, TheYoungestMovesToTheCpuPool) {
  StateBuilder builder = FullPool();
  const uint64_t waiting = builder.Waiting(10);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  EXPECT_THAT(MovedOut(plan), ElementsAre(3));
  EXPECT_THAT(plan.recompute, IsEmpty());
  EXPECT_EQ(FindWork(plan, 1), nullptr) << "its block comes when the move is done";
  EXPECT_NE(FindWork(plan, 2), nullptr) << "needs no block";
  EXPECT_EQ(FindWork(plan, 3), nullptr);
  EXPECT_EQ(FindWork(plan, waiting), nullptr) << "the room is not given away";
}

TEST(SchedulerTest, RecomputesWhenBothPoolsAreFull) {
  StateBuilder builder = FullPool();
  builder.state.cpu.free_blocks = 1;  // the victim needs two
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  EXPECT_THAT(plan.recompute, ElementsAre(3));
  EXPECT_THAT(plan.moves, IsEmpty());
}

TEST(SchedulerTest, RecomputesWhileTheCpuWorkerIsAway) {
  StateBuilder builder = FullPool();
  builder.state.cpu_up = false;
  EXPECT_THAT(builder.Plan(Config(OffloadPolicy::kAuto)).recompute, ElementsAre(3));
}

TEST(SchedulerTest, OnlyTheYoungerGive) {
  StateBuilder builder;
  builder.GpuDecode(16 * 40 - 5);
  const uint64_t youngest = builder.GpuDecode(16 * 24 + 1);
  ASSERT_EQ(builder.state.gpu.free_blocks, 0);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kOff));
  EXPECT_THAT(plan.recompute, ElementsAre(youngest)) << "it is the youngest itself";
  EXPECT_NE(FindWork(plan, 1), nullptr);
}

TEST(SchedulerTest, OutgrownSequencesMoveToTheLargerPool) {
  StateBuilder builder;
  const uint64_t id = builder.GpuDecode(64 * 16 + 1);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  EXPECT_THAT(MovedOut(plan), ElementsAre(id));
}

TEST(SchedulerTest, CpuSequencesMoveBackOldestFirstBelowTheWatermark) {
  StateBuilder builder;
  const uint64_t old_long = builder.CpuDecode(500);
  const uint64_t young_short = builder.CpuDecode(100);
  builder.GpuDecode(200);
  StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  EXPECT_THAT(MovedIn(plan), ElementsAre(old_long, young_short));
  EXPECT_EQ(FindWork(plan, old_long), nullptr) << "runs there from the next step on";
  builder.GpuDecode(16 * 15);
  plan = builder.Plan(Config(OffloadPolicy::kAuto));
  EXPECT_THAT(plan.moves, IsEmpty()) << "a younger, shorter one does not overtake";
}

TEST(SchedulerTest, ResidencyTimeKeepsFromMovingToAndFro) {
  StateBuilder builder;
  builder.state.mix.output_tokens = 10'000;
  const uint64_t id = builder.CpuDecode(100);
  builder.view(id).last_move_us = builder.now_us - 400'000;
  EXPECT_THAT(builder.Plan(Config(OffloadPolicy::kAuto)).moves, IsEmpty());
  builder.view(id).last_move_us = builder.now_us - 500'000;
  EXPECT_THAT(MovedIn(builder.Plan(Config(OffloadPolicy::kAuto))), ElementsAre(id));
}

TEST(SchedulerTest, WhereEverybodysOutputFitsNobodyWaitsToMoveBack) {
  StateBuilder builder;
  builder.state.mix.output_tokens = 64;
  const uint64_t id = builder.CpuDecode(100);
  builder.view(id).last_move_us = builder.now_us - 1;
  EXPECT_THAT(MovedIn(builder.Plan(Config(OffloadPolicy::kAuto))), ElementsAre(id));
}

TEST(SchedulerTest, ForcedPoliciesDoNotMoveBack) {
  for (const OffloadPolicy policy :
       {OffloadPolicy::kUnified, OffloadPolicy::kAsymmetric, OffloadPolicy::kAllCpu}) {
    StateBuilder builder;
    builder.CpuDecode(100);
    EXPECT_THAT(builder.Plan(Config(policy)).moves, IsEmpty());
  }
}

TEST(SchedulerTest, NeverMovesInBothDirections) {
  StateBuilder builder = FullPool();
  builder.CpuDecode(20);
  EXPECT_THAT(MovedOut(builder.Plan(Config(OffloadPolicy::kAuto))), ElementsAre(3));
}

TEST(SchedulerTest, AFullCpuPoolRecomputesItsYoungest) {
  StateBuilder builder;
  const uint64_t oldest = builder.CpuDecode(8 * 128 + 1);
  builder.CpuDecode(5 * 128 - 3);
  const uint64_t youngest = builder.CpuDecode(3 * 128 - 3);
  ASSERT_EQ(builder.state.cpu.free_blocks, 0);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAllCpu));
  EXPECT_THAT(plan.recompute, ElementsAre(youngest));
  EXPECT_NE(FindWork(plan, oldest), nullptr);
}

TEST(SchedulerTest, CpuSequencesRestWhileTheWorkerIsAway) {
  StateBuilder builder;
  const uint64_t on_gpu = builder.GpuDecode(50);
  const uint64_t on_cpu = builder.CpuDecode(50);
  const uint64_t prefill = builder.CpuPrefill(50, 10);
  builder.state.cpu_up = false;
  for (const OffloadPolicy policy : {OffloadPolicy::kAuto, OffloadPolicy::kUnified}) {
    const StepPlan plan = builder.Plan(Config(policy));
    EXPECT_NE(FindWork(plan, on_gpu), nullptr);
    EXPECT_EQ(FindWork(plan, on_cpu), nullptr);
    EXPECT_EQ(FindWork(plan, prefill), nullptr);
    EXPECT_THAT(plan.moves, IsEmpty());
  }
}

TEST(SchedulerTest, GivenUpMeansNoCpuTier) {
  StateBuilder builder;
  builder.state.cpu_up = false;
  builder.state.cpu_given_up = true;
  const uint64_t id = builder.Waiting(50);
  builder.view(id).home = Tier::kCpu;
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAllCpu));
  ASSERT_NE(FindWork(plan, id), nullptr);
  EXPECT_EQ(FindWork(plan, id)->tier, Tier::kGpu);
}

TEST(SchedulerTest, ForcedHomesAreKeptAndDoNotBlockEachOther) {
  StateBuilder builder;
  builder.GpuDecode(1000);
  const uint64_t gpu_home = builder.Waiting(500);
  const uint64_t cpu_home = builder.Waiting(50);
  builder.view(gpu_home).home = Tier::kGpu;
  builder.view(cpu_home).home = Tier::kCpu;
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kUnified));
  EXPECT_EQ(FindWork(plan, gpu_home), nullptr);
  ASSERT_NE(FindWork(plan, cpu_home), nullptr);
  EXPECT_EQ(FindWork(plan, cpu_home)->tier, Tier::kCpu);
}

TEST(SchedulerTest, PromptsLongerThanTheDevicePoolGoToTheCpu) {
  StateBuilder builder;
  builder.GpuDecode(100);
  const uint64_t id = builder.Waiting(64 * 16 + 1);
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kAuto));
  ASSERT_NE(FindWork(plan, id), nullptr);
  EXPECT_EQ(FindWork(plan, id)->tier, Tier::kCpu);
}

TEST(SchedulerTest, CanEverHoldFollowsThePolicy) {
  StateBuilder builder;
  const auto can = [&](OffloadPolicy policy, int64_t tokens) {
    return Scheduler(Config(policy), MakeRooflineCostModel(SteadyRates()))
        .CanEverHold(builder.state, tokens);
  };
  EXPECT_TRUE(can(OffloadPolicy::kOff, 1024));
  EXPECT_FALSE(can(OffloadPolicy::kOff, 1025));
  EXPECT_TRUE(can(OffloadPolicy::kAuto, 2048));
  EXPECT_FALSE(can(OffloadPolicy::kAuto, 2049));
  EXPECT_TRUE(can(OffloadPolicy::kAllCpu, 2048));
}

TEST(SchedulerTest, StepTargetTrimsPrefillBesideDecodes) {
  StateBuilder builder;
  const uint64_t prefill = builder.GpuPrefill(900, 0);
  SchedulerConfig config = Config(OffloadPolicy::kOff);
  config.max_step_us = 15'000;  // 512 rows take about 51 ms, a weight read 10 ms
  EXPECT_EQ(FindWork(builder.Plan(config), prefill)->num_tokens, 512) << "nobody waits for it";
  builder.GpuDecode(20);
  const StepPlan plan = builder.Plan(config);
  EXPECT_LT(FindWork(plan, prefill)->num_tokens, 200);
  EXPECT_GE(FindWork(plan, prefill)->num_tokens, 16);
  EXPECT_LE(plan.predicted.total_us, 15'000);
}

}  // namespace
}  // namespace tandem::gpu_worker
