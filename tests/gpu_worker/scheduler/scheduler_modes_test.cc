#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/gpu_worker/scheduler/state_builder.h"

namespace tandem::gpu_worker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Keeps CPU sequences where they are, so that placement alone is looked at.
SchedulerConfig StayConfig(OffloadPolicy policy) {
  SchedulerConfig config = Config(policy);
  config.max_swap_ins_per_step = 0;
  return config;
}

MeasuredRates SlowCpu() {
  MeasuredRates rates = SteadyRates();
  rates.cpu_attention_bytes_per_us = 20;
  return rates;
}

TEST(SchedulerModesTest, UnifiedTakesEveryCpuDecodeIntoA) {
  StateBuilder builder;
  builder.GpuDecode(50);
  for (int i = 0; i < 5; ++i) {
    builder.CpuDecode(60);
  }
  const StepPlan plan = builder.Plan(Config(OffloadPolicy::kUnified));
  EXPECT_EQ(plan.mode, StepMode::kUnified);
  EXPECT_THAT(plan.sub_batch[0], SizeIs(6));
  EXPECT_THAT(plan.sub_batch[1], IsEmpty());
  EXPECT_EQ(plan.progress, 6);
}

TEST(SchedulerModesTest, AsymmetricSharesEvenlyAndALoneOneGoesToB) {
  StateBuilder builder;
  const uint64_t first = builder.CpuDecode(60);
  StepPlan plan = builder.Plan(Config(OffloadPolicy::kAsymmetric));
  EXPECT_EQ(plan.mode, StepMode::kAsymmetric);
  EXPECT_THAT(plan.sub_batch[0], IsEmpty());
  EXPECT_EQ(SubBatchOf(plan, first), 1);
  for (int i = 0; i < 4; ++i) {
    builder.CpuDecode(60);
  }
  const uint64_t on_gpu = builder.GpuDecode(20);
  plan = builder.Plan(Config(OffloadPolicy::kAsymmetric));
  EXPECT_THAT(plan.sub_batch[0], SizeIs(1 + 2));
  EXPECT_THAT(plan.sub_batch[1], SizeIs(3));
  EXPECT_EQ(SubBatchOf(plan, on_gpu), 0);
}

TEST(SchedulerModesTest, ForcedStepsWithoutCpuDecodesAreGpuOnly) {
  StateBuilder builder;
  builder.GpuDecode(20);
  builder.CpuPrefill(100, 20);
  for (const OffloadPolicy policy :
       {OffloadPolicy::kUnified, OffloadPolicy::kAsymmetric, OffloadPolicy::kAllCpu}) {
    const StepPlan plan = builder.Plan(Config(policy));
    EXPECT_EQ(plan.mode, StepMode::kGpuOnly);
    EXPECT_THAT(plan.sub_batch[0], SizeIs(2));
  }
}

TEST(SchedulerModesTest, SlotLimitsAreHardAndTurnsAreTaken) {
  StateBuilder builder;
  for (int i = 0; i < 6; ++i) {
    builder.CpuDecode(129 + i);  // two table entries each
  }
  SchedulerConfig config = StayConfig(OffloadPolicy::kUnified);
  config.max_cpu_rows_per_slot = 4;
  EXPECT_THAT(builder.Plan(config).sub_batch[0], SizeIs(4));
  config.max_cpu_table_entries_per_slot = 5;
  EXPECT_THAT(builder.Plan(config).sub_batch[0], SizeIs(2));
  config.policy = OffloadPolicy::kAsymmetric;
  EXPECT_THAT(builder.Plan(config).sub_batch[0], SizeIs(2));
  EXPECT_THAT(builder.Plan(config).sub_batch[1], SizeIs(2));
  builder.view(6).last_progress_step -= 1;
  config.policy = OffloadPolicy::kUnified;
  EXPECT_NE(FindWork(builder.Plan(config), 6), nullptr) << "passed over longest, so first";
  config.policy = OffloadPolicy::kAuto;
  EXPECT_NE(FindWork(builder.Plan(config), 6), nullptr);
}

TEST(SchedulerModesTest, AutoOffloadsWhatHidesBehindTheDevice) {
  StateBuilder builder;
  for (int i = 0; i < 4; ++i) {
    builder.GpuDecode(100);
    builder.CpuDecode(100);
  }
  const StepPlan plan = builder.Plan(StayConfig(OffloadPolicy::kAuto));
  EXPECT_NE(plan.mode, StepMode::kGpuOnly);
  EXPECT_EQ(plan.progress, 8);
  EXPECT_GT(plan.value / plan.predicted.total_us, plan.gpu_only_value_per_us);
}

TEST(SchedulerModesTest, AutoLeavesASlowCpuAlone) {
  StateBuilder builder;
  for (int i = 0; i < 4; ++i) {
    builder.GpuDecode(100);
    builder.CpuDecode(100);
  }
  const StepPlan plan = builder.Plan(StayConfig(OffloadPolicy::kAuto), SlowCpu());
  EXPECT_EQ(plan.mode, StepMode::kGpuOnly);
  EXPECT_EQ(plan.progress, 4);
}

TEST(SchedulerModesTest, PassedOverSequencesGoFirstWhateverItCosts) {
  StateBuilder builder;
  builder.GpuDecode(100);
  const uint64_t aged = builder.CpuDecode(100);
  const uint64_t fresh = builder.CpuDecode(100);
  builder.view(aged).last_progress_step = builder.state.step_index - 32;
  StepPlan plan = builder.Plan(StayConfig(OffloadPolicy::kAuto), SlowCpu());
  EXPECT_EQ(FindWork(plan, aged), nullptr) << "only waits to come back to the device: eight times";
  builder.view(aged).last_progress_step = builder.state.step_index - 8 * 32;
  plan = builder.Plan(StayConfig(OffloadPolicy::kAuto), SlowCpu());
  EXPECT_NE(FindWork(plan, aged), nullptr);
  EXPECT_EQ(FindWork(plan, fresh), nullptr);
  builder.view(aged).last_progress_step = builder.state.step_index - 32;
  builder.state.offload_pays = false;
  plan = builder.Plan(StayConfig(OffloadPolicy::kAuto), SteadyRates());
  EXPECT_NE(FindWork(plan, aged), nullptr) << "the guard does not keep it either";
  EXPECT_EQ(FindWork(plan, fresh), nullptr);
}

TEST(SchedulerModesTest, TheLongestPassedOverComeFirstAndEqualsByAge) {
  constexpr uint64_t kAgoShort[] = {1, 7, 1, 30, 7};
  constexpr uint64_t kAgoLong[] = {1, 7000, 1, 30'000, 7000};
  for (const auto& ago : {kAgoShort, kAgoLong}) {
    StateBuilder builder;
    builder.state.step_index = 100'000;
    for (int i = 0; i < 5; ++i) {
      builder.view(builder.CpuDecode(60)).last_progress_step = builder.state.step_index - ago[i];
    }
    std::vector<uint64_t> ids;
    for (const PlannedWork& work : builder.Plan(StayConfig(OffloadPolicy::kUnified)).sub_batch[0]) {
      ids.push_back(work.sequence_id);
    }
    EXPECT_THAT(ids, ElementsAre(4, 2, 5, 1, 3));
  }
}

TEST(SchedulerModesTest, GuardKeepsCpuDecodesOut) {
  StateBuilder builder;
  builder.GpuDecode(100);
  builder.CpuDecode(100);
  builder.state.offload_pays = false;
  EXPECT_EQ(builder.Plan(StayConfig(OffloadPolicy::kAuto)).mode, StepMode::kGpuOnly);
}

TEST(SchedulerModesTest, WithoutDeviceWorkEverythingRunsOnTheCpu) {
  StateBuilder builder;
  for (int i = 0; i < 3; ++i) {
    builder.CpuDecode(100);
  }
  builder.state.offload_pays = false;
  const StepPlan plan = builder.Plan(StayConfig(OffloadPolicy::kAuto), SlowCpu());
  EXPECT_EQ(plan.progress, 3);
}

TEST(SchedulerModesTest, PrefillRichBatchesMakeAsymmetricWorthIt) {
  StateBuilder builder;
  builder.GpuPrefill(600, 0);
  for (int i = 0; i < 12; ++i) {
    builder.CpuDecode(100);
  }
  MeasuredRates rates = SteadyRates();
  rates.cpu_attention_bytes_per_us = 1500;  // about as long as the dense stage of the chunk
  const StepPlan plan = builder.Plan(StayConfig(OffloadPolicy::kAuto), rates);
  EXPECT_EQ(plan.mode, StepMode::kAsymmetric);
  EXPECT_FALSE(plan.sub_batch[1].empty());
}

TEST(SchedulerModesTest, TheCurrentModeIsLeftOnlyForAGain) {
  // Find a moment where the modes are close: from either side the planner stays where it is.
  int stays = 0;
  for (int bandwidth = 1000; bandwidth < 12'000; bandwidth += 250) {
    StateBuilder builder;
    builder.GpuPrefill(600, 0);
    for (int i = 0; i < 12; ++i) {
      builder.CpuDecode(100);
    }
    MeasuredRates rates = SteadyRates();
    rates.cpu_attention_bytes_per_us = bandwidth;
    builder.state.current_mode = StepMode::kUnified;
    const StepMode from_unified = builder.Plan(StayConfig(OffloadPolicy::kAuto), rates).mode;
    builder.state.current_mode = StepMode::kAsymmetric;
    const StepMode from_asymmetric = builder.Plan(StayConfig(OffloadPolicy::kAuto), rates).mode;
    if (from_unified != from_asymmetric) {
      EXPECT_EQ(from_unified, StepMode::kUnified);
      EXPECT_EQ(from_asymmetric, StepMode::kAsymmetric);
      ++stays;
    }
  }
  EXPECT_GT(stays, 0);
}

TEST(SchedulerModesTest, WaitingSequencesGoToTheCpuWhenThatPays) {
  StateBuilder builder;
  builder.GpuDecode(500);
  builder.GpuDecode(500);
  const uint64_t id = builder.Waiting(100);
  EXPECT_EQ(FindWork(builder.Plan(Config(OffloadPolicy::kAuto)), id)->tier, Tier::kCpu);
  EXPECT_EQ(FindWork(builder.Plan(Config(OffloadPolicy::kAuto), SlowCpu()), id), nullptr);
  builder.state.offload_pays = false;
  EXPECT_EQ(FindWork(builder.Plan(Config(OffloadPolicy::kAuto)), id), nullptr);
}

}  // namespace
}  // namespace tandem::gpu_worker
