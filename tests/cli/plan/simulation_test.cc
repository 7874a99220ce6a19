#include "cli/plan/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/plan/model_catalog.h"
#include "gpu_worker/cost_model/profile_cost_model.h"

namespace tandem::cli {
namespace {

using gpu_worker::OffloadPolicy;

constexpr OffloadPolicy kPolicies[] = {OffloadPolicy::kOff,     OffloadPolicy::kAuto,
                                       OffloadPolicy::kUnified, OffloadPolicy::kAsymmetric,
                                       OffloadPolicy::kAllCpu,  OffloadPolicy::kNeo};

// A T4 with Llama-2-7B and little room for KV.
SimulationSetup T4(OffloadPolicy policy) {
  SimulationSetup setup;
  const auto shape = FindModelShape("llama-2-7b");
  EXPECT_TRUE(shape.ok());
  auto model =
      gpu_worker::MakeProfileCostModel(*gpu_worker::BuiltInDeviceProfile("t4"), shape->shape, {});
  EXPECT_TRUE(model.ok()) << model.status();
  setup.cost_model = *std::move(model);
  setup.limits.num_gpu_blocks = 864 / 16;
  setup.limits.gpu_block_tokens = 16;
  setup.limits.num_cpu_blocks = policy == OffloadPolicy::kOff ? 0 : 320;
  setup.limits.max_cpu_rows_per_slot = 256;
  setup.limits.max_cpu_table_entries_per_slot = 320;
  setup.engine.offload = policy;
  setup.engine.max_model_len = 4096;
  setup.step_overhead_us = 100;
  setup.check_invariants = true;
  return setup;
}

std::vector<PlannedArrival> Requests(int count, double rate) {
  WorkloadSource source;
  source.prompt_tokens = 300;
  source.output_tokens = 40;
  source.spread = 0.5;
  source.requests = count;
  return WithArrivals(*MakeRequests(source), {.rate = rate});
}

// The parts of a run add up to it, and filling and draining are in the first and the last one.
TEST(Simulation, AWindowCountsItsTokensOnly) {
  const auto requests = Requests(60, 0);
  SimulationSetup setup = T4(OffloadPolicy::kAuto);
  const auto whole = Simulate(setup, requests);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->window_tokens, 0);
  setup.window_us = whole->duration_us / 3 + 1;
  int64_t tokens = 0;
  int64_t most = 0;
  for (setup.window_from_us = 0; setup.window_from_us <= whole->duration_us;
       setup.window_from_us += setup.window_us) {
    const auto part = Simulate(setup, requests);
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->output_tokens, whole->output_tokens);
    tokens += part->window_tokens;
    most = std::max(most, part->window_tokens);
  }
  EXPECT_EQ(tokens, whole->output_tokens);
  EXPECT_GT(3 * most, whole->output_tokens);
}

TEST(Simulation, EveryRequestEndsWithItsTokensUnderEveryPolicy) {
  const auto requests = Requests(60, 0);
  int64_t tokens = 0;
  for (const PlannedArrival& request : requests) {
    tokens += request.output_tokens;
  }
  for (const OffloadPolicy policy : kPolicies) {
    const auto result = Simulate(T4(policy), requests);
    ASSERT_TRUE(result.ok()) << static_cast<int>(policy) << ": " << result.status();
    EXPECT_EQ(result->completed, 60);
    EXPECT_EQ(result->refused, 0);
    EXPECT_EQ(result->output_tokens, tokens);
    EXPECT_EQ(result->total_us.count(), 60);
    EXPECT_EQ(result->first_token_us.count(), 60);
    EXPECT_EQ(result->inter_token_us.count(), tokens - 60);
    EXPECT_LE(result->gpu_busy_us, static_cast<double>(result->duration_us));
    EXPECT_LE(result->cpu_busy_us, static_cast<double>(result->duration_us));
    EXPECT_EQ(result->counters.generated_tokens, static_cast<uint64_t>(tokens));
  }
}

TEST(Simulation, TheSameInputGivesTheSameResult) {
  const auto requests = Requests(40, 0.8);
  const auto first = Simulate(T4(OffloadPolicy::kAuto), requests);
  const auto second = Simulate(T4(OffloadPolicy::kAuto), requests);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->duration_us, second->duration_us);
  EXPECT_EQ(first->total_us.Mean(), second->total_us.Mean());
  for (int mode = 0; mode < 3; ++mode) {
    EXPECT_EQ(first->steps[mode], second->steps[mode]);
  }
}

TEST(Simulation, OneStepTakesWhatThePredictorSays) {
  const SimulationSetup setup = T4(OffloadPolicy::kOff);
  // One request of one token: a single step that prefills it.
  const std::vector<PlannedArrival> requests = {{0, 200, 1}};
  const auto result = Simulate(setup, requests);
  ASSERT_TRUE(result.ok());
  gpu_worker::StepLoad load;
  load.sub_batch[0].rows = 200;
  load.sub_batch[0].prefills.push_back({200, 0});
  const double predicted_us = gpu_worker::Predictor(setup.cost_model).Predict(load, {}).total_us;
  EXPECT_NEAR(static_cast<double>(result->duration_us), predicted_us + setup.step_overhead_us, 1);
  EXPECT_NEAR(result->total_us.Mean(), static_cast<double>(result->duration_us), 1);
}

TEST(Simulation, OffloadingPaysOnASmallPool) {
  const auto requests = Requests(80, 0);
  const auto off = Simulate(T4(OffloadPolicy::kOff), requests);
  const auto automatic = Simulate(T4(OffloadPolicy::kAuto), requests);
  ASSERT_TRUE(off.ok() && automatic.ok());
  EXPECT_LT(automatic->duration_us, off->duration_us * 0.7);
  EXPECT_EQ(off->steps[1] + off->steps[2], 0);
  EXPECT_GT(automatic->steps[1] + automatic->steps[2], 0);
}

TEST(Simulation, IdleTimeBetweenArrivalsIsSkipped) {
  const std::vector<PlannedArrival> requests = {{0, 100, 2}, {60'000'000, 100, 2}};
  const auto result = Simulate(T4(OffloadPolicy::kOff), requests);
  ASSERT_TRUE(result.ok());
  EXPECT_GT(result->duration_us, 60'000'000);
  EXPECT_EQ(result->steps[0], 4);
  EXPECT_LT(result->total_us.Mean(), 2'000'000);
}

TEST(Simulation, AClosedLoopKeepsItsNumberOfRequestsOpen) {
  SimulationSetup setup = T4(OffloadPolicy::kOff);
  const auto requests = Requests(20, 0);
  setup.concurrency = 1;
  const auto one = Simulate(setup, requests);
  setup.concurrency = 2;
  const auto two = Simulate(setup, requests);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status();
  EXPECT_EQ(one->completed, 20);
  // One after the other: their times add up, and nobody waits for a place.
  EXPECT_NEAR(one->total_us.Mean() * 20, static_cast<double>(one->duration_us), 20);
  EXPECT_LT(two->duration_us, one->duration_us);
}

TEST(Simulation, WhatNeverFitsIsRefusedAndTheRestRuns) {
  SimulationSetup setup = T4(OffloadPolicy::kOff);
  // Over the model's length; over the pool; fits.
  const std::vector<PlannedArrival> requests = {{0, 4096, 1}, {0, 2000, 1}, {0, 100, 1}};
  const auto result = Simulate(setup, requests);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->refused, 2);
  EXPECT_EQ(result->completed, 1);
}

TEST(Simulation, ASlowCpuCostsTimeAndTheCorrectionFindsOut) {
  const auto requests = Requests(60, 0);
  SimulationSetup setup = T4(OffloadPolicy::kAuto);
  const auto plain = Simulate(setup, requests);
  Disturbance slow;
  slow.factors.cpu_decode = 4;
  setup.disturbances.push_back(slow);
  const auto disturbed = Simulate(setup, requests);
  const auto off = Simulate(T4(OffloadPolicy::kOff), requests);
  ASSERT_TRUE(plain.ok() && disturbed.ok() && off.ok());
  EXPECT_GT(disturbed->duration_us, plain->duration_us);
  EXPECT_LT(static_cast<double>(disturbed->duration_us),
            1.05 * static_cast<double>(off->duration_us));
}

TEST(Simulation, TheTimelineAddsUp) {
  SimulationSetup setup = T4(OffloadPolicy::kAuto);
  setup.timeline_us = 1'000'000;
  const auto requests = Requests(30, 0);
  const auto result = Simulate(setup, requests);
  ASSERT_TRUE(result.ok());
  int64_t tokens = 0;
  double mode_us = 0;
  for (const TimelinePoint& point : result->timeline) {
    tokens += point.output_tokens;
    mode_us += point.mode_us[0] + point.mode_us[1] + point.mode_us[2];
  }
  EXPECT_EQ(tokens, result->output_tokens);
  EXPECT_NEAR(mode_us, static_cast<double>(result->duration_us), 1);
}

TEST(Simulation, ABoundEndsRunsThatAreTooLong) {
  SimulationSetup setup = T4(OffloadPolicy::kOff);
  setup.max_steps = 10;
  EXPECT_EQ(Simulate(setup, Requests(30, 0)).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Histogram, PercentilesAreRightToAPercent) {
  Histogram histogram;
  for (int i = 1; i <= 1000; ++i) {
    histogram.Add(i * 1000.0);
  }
  EXPECT_NEAR(histogram.Percentile(50), 500e3, 10e3);
  EXPECT_NEAR(histogram.Percentile(99), 990e3, 20e3);
  EXPECT_DOUBLE_EQ(histogram.Mean(), 500.5e3);
  EXPECT_EQ(Histogram().Percentile(50), 0);
}

}  // namespace
}  // namespace tandem::cli
