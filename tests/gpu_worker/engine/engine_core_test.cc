#include "gpu_worker/engine/engine_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/gpu_worker/engine/core_driver.h"

namespace tandem::gpu_worker {
namespace {

using testing::Each;
using testing::Eq;
using testing::IsEmpty;

EngineOptions Options(OffloadPolicy policy, int32_t max_num_batched_tokens = 2048) {
  EngineOptions options;
  options.offload = policy;
  options.max_num_batched_tokens = max_num_batched_tokens;
  options.eos_token_ids = {1, 2};
  return options;
}

// 16 sequences of about 190 tokens on 32 device blocks of 16.
void ServeSixteen(CoreDriver& driver) {
  std::vector<GenerationRequest> requests;
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 16; ++i) {
    requests.push_back(driver.Request(30, 160, i));
    ids.push_back(driver.Submit(requests.back()));
  }
  ASSERT_TRUE(driver.RunToEnd());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(driver.outcome(ids[i]).tokens, driver.Expected(requests[i])) << i;
    EXPECT_EQ(driver.outcome(ids[i]).last.finish, FinishReason::kLength);
  }
  EXPECT_EQ(driver.snapshot().gpu_blocks_used, 0);
  EXPECT_EQ(driver.snapshot().cpu_blocks_used, 0);
}

TEST(EngineCoreTest, OffRunsEverythingOnTheDevice) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(400, 64), HostLikeRates());
  ServeSixteen(driver);
  const EngineSnapshot snapshot = driver.snapshot();
  EXPECT_EQ(snapshot.decode_tokens_cpu, 0u);
  EXPECT_EQ(snapshot.decode_tokens_gpu, 16u * 159);
  EXPECT_EQ(snapshot.generated_tokens, 16u * 160);
  EXPECT_EQ(snapshot.prompt_tokens, 16u * 30);
  EXPECT_EQ(snapshot.recomputes, 0u);
  EXPECT_EQ(snapshot.steps[1] + snapshot.steps[2], 0u);
}

TEST(EngineCoreTest, OffOnASmallPoolRecomputesAndServesAll) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(32, 0), HostLikeRates());
  ServeSixteen(driver);
  EXPECT_GT(driver.snapshot().recomputes, 0u);
}

TEST(EngineCoreTest, AllCpuAttendsEveryDecodeOnTheCpu) {
  CoreDriver driver(Options(OffloadPolicy::kAllCpu), SmallLimits(32, 64), HostLikeRates());
  ServeSixteen(driver);
  const EngineSnapshot snapshot = driver.snapshot();
  EXPECT_EQ(snapshot.decode_tokens_cpu, 16u * 159);
  EXPECT_EQ(snapshot.decode_tokens_gpu, 0u);
  EXPECT_GT(snapshot.steps[static_cast<int>(StepMode::kUnified)], 0u);
  EXPECT_EQ(snapshot.steps[static_cast<int>(StepMode::kAsymmetric)], 0u);
}

TEST(EngineCoreTest, ForcedModesShareSequencesOutAndStay) {
  for (const OffloadPolicy policy : {OffloadPolicy::kUnified, OffloadPolicy::kAsymmetric}) {
    CoreDriver driver(Options(policy), SmallLimits(400, 64), HostLikeRates());
    ServeSixteen(driver);
    const EngineSnapshot snapshot = driver.snapshot();
    EXPECT_EQ(snapshot.decode_tokens_cpu, 8u * 159);
    EXPECT_EQ(snapshot.decode_tokens_gpu, 8u * 159);
    EXPECT_EQ(snapshot.swap_ins + snapshot.swap_outs, 0u);
    const bool unified = policy == OffloadPolicy::kUnified;
    EXPECT_GT(
        snapshot.steps[static_cast<int>(unified ? StepMode::kUnified : StepMode::kAsymmetric)],
        100u);
    EXPECT_EQ(
        snapshot.steps[static_cast<int>(unified ? StepMode::kAsymmetric : StepMode::kUnified)], 0u);
  }
}

TEST(EngineCoreTest, AutoUsesTheCpuTierWhenTheDevicePoolIsTooSmall) {
  CoreDriver driver(Options(OffloadPolicy::kAuto), SmallLimits(32, 64), HostLikeRates());
  ServeSixteen(driver);
  const EngineSnapshot snapshot = driver.snapshot();
  EXPECT_GT(snapshot.decode_tokens_cpu, snapshot.decode_tokens_gpu) << "the CPU carries most";
  CoreDriver off(Options(OffloadPolicy::kOff), SmallLimits(32, 64), HostLikeRates());
  ServeSixteen(off);
  EXPECT_LT(snapshot.progress * 2, off.snapshot().progress) << "in far fewer steps";
}

TEST(EngineCoreTest, AutoStaysOnTheDeviceWhenThePoolIsRoomy) {
  CoreDriver driver(Options(OffloadPolicy::kAuto), SmallLimits(400, 64), HostLikeRates());
  ServeSixteen(driver);
  EXPECT_EQ(driver.snapshot().decode_tokens_cpu, 0u);
  EXPECT_EQ(driver.snapshot().swap_outs, 0u);
}

TEST(EngineCoreTest, SmallBatchesWithManySequences) {
  CoreDriver driver(Options(OffloadPolicy::kAuto, 48), SmallLimits(24, 64), HostLikeRates());
  std::vector<GenerationRequest> requests;
  std::vector<uint64_t> ids;
  for (int32_t i = 0; i < 8; ++i) {
    requests.push_back(driver.Request(40, 64, i));
    ids.push_back(driver.Submit(requests.back()));
  }
  ASSERT_TRUE(driver.RunToEnd());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(driver.outcome(ids[i]).tokens, driver.Expected(requests[i]));
  }
}

TEST(EngineCoreTest, LongPromptsOutgrowTheDevicePool) {
  CoreDriver driver(Options(OffloadPolicy::kAuto, 64), SmallLimits(96, 200), HostLikeRates());
  std::vector<GenerationRequest> requests;
  std::vector<uint64_t> ids;
  for (const int32_t length : {1535, 12, 700, 1535, 90, 1, 300}) {
    requests.push_back(driver.Request(length, 40, length));
    requests.back().num_prompt_logprobs = 0;
    ids.push_back(driver.Submit(requests.back()));
  }
  ASSERT_TRUE(driver.RunToEnd());
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(driver.outcome(ids[i]).tokens, driver.Expected(requests[i]));
    EXPECT_EQ(driver.outcome(ids[i]).prompt_logprobs.size(), requests[i].prompt_tokens.size() - 1);
  }
}

TEST(EngineCoreTest, RefusesWhatCannotWork) {
  EngineOptions options = Options(OffloadPolicy::kOff);
  options.max_model_len = 100;
  options.max_waiting = 2;
  CoreDriver driver(options, SmallLimits(4, 0));
  const auto outcome = [&](const GenerationRequest& request) {
    return driver.core().Submit(request, driver.now_us).outcome;
  };
  EXPECT_EQ(outcome(driver.Request(0, 5)), SubmitOutcome::kInvalidToken);
  EXPECT_EQ(outcome(driver.Request(90, 11)), SubmitOutcome::kTooLong);
  EXPECT_EQ(outcome(driver.Request(64, 10)), SubmitOutcome::kNeverFits);
  GenerationRequest bad = driver.Request(5, 5);
  bad.prompt_tokens[2] = 997;
  EXPECT_EQ(outcome(bad), SubmitOutcome::kInvalidToken);
  bad.prompt_tokens[2] = -1;
  EXPECT_EQ(outcome(bad), SubmitOutcome::kInvalidToken);
  EXPECT_EQ(outcome(driver.Request(63, 10)), SubmitOutcome::kAccepted);
  EXPECT_EQ(outcome(driver.Request(5, 5)), SubmitOutcome::kAccepted);
  EXPECT_EQ(outcome(driver.Request(5, 5)), SubmitOutcome::kQueueFull);
  driver.core().BeginDrain();
  EXPECT_EQ(outcome(driver.Request(5, 5)), SubmitOutcome::kDraining);
  EXPECT_TRUE(driver.RunToEnd());
}

TEST(EngineCoreTest, OutgrowingBothPoolsEndsWithLength) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(4, 0));
  const uint64_t id = driver.Submit(driver.Request(60, 100));
  ASSERT_TRUE(driver.RunToEnd());
  EXPECT_EQ(driver.outcome(id).last.finish, FinishReason::kLength);
  EXPECT_EQ(driver.outcome(id).tokens.size(), 5u);  // the last token needs no KV
}

// The fake model's 12th token after this prompt, for tests of stopping.
int32_t TokenAt(const CoreDriver& driver, const GenerationRequest& request, size_t index) {
  return driver.Expected(request)[index];
}

TEST(EngineCoreTest, StopTokensEndAndAreReported) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(40, 0));
  GenerationRequest request = driver.Request(20, 30);
  request.stop_token_ids = {TokenAt(driver, request, 11)};
  const uint64_t id = driver.Submit(request);
  ASSERT_TRUE(driver.RunToEnd());
  const auto& outcome = driver.outcome(id);
  EXPECT_EQ(outcome.tokens, driver.Expected(request));
  EXPECT_EQ(outcome.last.finish, FinishReason::kStop);
  EXPECT_EQ(outcome.last.stop_token, request.stop_token_ids[0]);
  EXPECT_EQ(outcome.tokens.back(), request.stop_token_ids[0]);
  EXPECT_EQ(outcome.last.completion_tokens, 12);
  EXPECT_EQ(outcome.last.prompt_tokens, 20);
}

TEST(EngineCoreTest, EndTokensWorkUnlessIgnored) {
  EngineOptions options = Options(OffloadPolicy::kOff);
  CoreDriver probe(options, SmallLimits(40, 0));
  const GenerationRequest request = probe.Request(20, 30);
  options.eos_token_ids = {TokenAt(probe, request, 6)};
  CoreDriver driver(options, SmallLimits(40, 0));
  GenerationRequest stops = request;
  stops.ignore_eos = false;
  const uint64_t first = driver.Submit(stops);
  const uint64_t second = driver.Submit(request);
  ASSERT_TRUE(driver.RunToEnd());
  EXPECT_EQ(driver.outcome(first).tokens.size(), 7u);
  EXPECT_EQ(driver.outcome(first).last.finish, FinishReason::kStop);
  EXPECT_EQ(driver.outcome(second).tokens.size(), 30u);
}

TEST(EngineCoreTest, MinTokensForbidsStopTokens) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(40, 0));
  GenerationRequest request = driver.Request(20, 30);
  request.stop_token_ids = {TokenAt(driver, request, 3)};
  request.min_tokens = 10;
  const uint64_t id = driver.Submit(request);
  ASSERT_TRUE(driver.RunToEnd());
  EXPECT_EQ(driver.outcome(id).tokens, driver.Expected(request));
  EXPECT_GT(driver.outcome(id).tokens.size(), 10u);
  EXPECT_THAT(std::vector<int32_t>(driver.outcome(id).tokens.begin(),
                                   driver.outcome(id).tokens.begin() + 10),
              Each(testing::Ne(request.stop_token_ids[0])));
}

TEST(EngineCoreTest, ResumedRequestsGoOnWhereTheyWere) {
  CoreDriver driver(Options(OffloadPolicy::kOff, 8), SmallLimits(40, 0));
  const GenerationRequest whole = driver.Request(20, 30);
  const std::vector<int32_t> expected = driver.Expected(whole);
  GenerationRequest resumed = whole;
  resumed.resumed_tokens.assign(expected.begin(), expected.begin() + 13);
  resumed.num_prompt_logprobs = 0;
  const uint64_t id = driver.Submit(resumed);
  ASSERT_TRUE(driver.RunToEnd());
  EXPECT_EQ(driver.outcome(id).tokens, std::vector<int32_t>(expected.begin() + 13, expected.end()));
  EXPECT_EQ(driver.outcome(id).last.completion_tokens, 30);
  EXPECT_EQ(driver.outcome(id).prompt_logprobs.size(), 19u);
}

TEST(EngineCoreTest, ResumedAfterItsEndEndsAtOnce) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(40, 0));
  GenerationRequest request = driver.Request(20, 5);
  request.resumed_tokens = {1, 2, 3, 4, 5};
  const uint64_t full = driver.Submit(request);
  request.max_tokens = 9;
  request.ignore_eos = false;
  request.resumed_tokens = {9, 2};
  const uint64_t stopped = driver.Submit(request);
  driver.Step();
  EXPECT_EQ(driver.outcome(full).last.finish, FinishReason::kLength);
  EXPECT_EQ(driver.outcome(stopped).last.finish, FinishReason::kStop);
  EXPECT_EQ(driver.outcome(stopped).last.stop_token, 2);
  EXPECT_THAT(driver.outcome(stopped).tokens, IsEmpty());
}

TEST(EngineCoreTest, LogprobsComeWithTheirTokens) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(40, 0));
  GenerationRequest request = driver.Request(20, 4);
  request.num_logprobs = 2;
  ASSERT_NE(driver.Submit(request), 0u);
  int tokens = 0;
  while (const StepInput* input = driver.core().PlanStep(driver.now_us)) {
    driver.core().Commit(*driver.runner().Run(*input), driver.now_us);
    for (const auto& [id, update] : driver.core().TakeUpdates()) {
      ASSERT_EQ(update.logprobs.size(), update.tokens.size());
      EXPECT_EQ(update.logprobs[0].chosen.token_id, update.tokens[0]);
      ++tokens;
    }
  }
  EXPECT_EQ(tokens, 4);
}

TEST(EngineCoreTest, CancelFreesBlocksInEveryState) {
  CoreDriver driver(Options(OffloadPolicy::kAllCpu, 16), SmallLimits(8, 64));
  const uint64_t prefilling = driver.Submit(driver.Request(40, 20, 1));
  const uint64_t waiting = driver.Submit(driver.Request(40, 20, 2));
  driver.Step();
  EXPECT_GT(driver.snapshot().cpu_blocks_used, 0);
  driver.core().Cancel(waiting);
  driver.core().Cancel(prefilling);
  EXPECT_EQ(driver.snapshot().cpu_blocks_used, 0);
  const uint64_t decoding = driver.Submit(driver.Request(4, 20, 3));
  driver.Step();
  driver.Step();
  const StepInput* input = driver.core().PlanStep(driver.now_us);
  ASSERT_NE(input, nullptr);
  driver.core().Cancel(decoding);  // in the middle of its step
  EXPECT_GT(driver.snapshot().cpu_blocks_used, 0) << "the step still uses them";
  driver.core().Commit(*driver.runner().Run(*input), driver.now_us);
  EXPECT_EQ(driver.snapshot().cpu_blocks_used, 0);
  EXPECT_TRUE(driver.core().idle());
  driver.core().Cancel(12345);
}

TEST(EngineCoreTest, DeadlinesEndRequests) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(40, 0));
  GenerationRequest request = driver.Request(20, 1000);
  request.deadline_us = driver.now_us + 35'000;
  const uint64_t id = driver.Submit(request);
  EXPECT_EQ(driver.core().NextWakeUs(driver.now_us), request.deadline_us);
  ASSERT_TRUE(driver.RunToEnd(10));
  EXPECT_TRUE(absl::IsDeadlineExceeded(driver.outcome(id).last.error));
  EXPECT_EQ(driver.outcome(id).last.finish, FinishReason::kAbort);
  EXPECT_EQ(driver.snapshot().gpu_blocks_used, 0);
}

TEST(EngineCoreTest, DeadCpuWorkerPausesItsSequencesOnly) {
  CoreDriver driver(Options(OffloadPolicy::kUnified), SmallLimits(40, 64));
  const GenerationRequest on_gpu = driver.Request(20, 40, 1);
  const GenerationRequest on_cpu = driver.Request(20, 40, 2);
  const uint64_t gpu_id = driver.Submit(on_gpu);
  const uint64_t cpu_id = driver.Submit(on_cpu);
  for (int i = 0; i < 5; ++i) {
    driver.Step();
  }
  driver.runner().SetCpuWorkerUp(false);  // the step in flight notices first
  driver.Step();
  driver.core().OnCpuWorkerDown(driver.now_us);
  EXPECT_EQ(driver.snapshot().aborted_steps_cpu_worker_lost, 1u);
  const size_t paused_at = driver.outcome(cpu_id).tokens.size();
  for (int i = 0; i < 10; ++i) {
    driver.Step();
  }
  EXPECT_EQ(driver.outcome(cpu_id).tokens.size(), paused_at);
  EXPECT_GE(driver.outcome(gpu_id).tokens.size(), paused_at + 10);
  driver.CpuWorkerUp();
  ASSERT_TRUE(driver.RunToEnd());
  EXPECT_EQ(driver.outcome(cpu_id).tokens, driver.Expected(on_cpu));
  EXPECT_EQ(driver.outcome(gpu_id).tokens, driver.Expected(on_gpu));
  EXPECT_EQ(driver.snapshot().recomputes, 0u);
}

TEST(EngineCoreTest, AwayPastTheBoundIsRecomputedOnTheDevice) {
  EngineOptions options = Options(OffloadPolicy::kAllCpu);
  options.cpu_worker_away_limit_us = 200'000;
  options.cpu_worker_lost_limit_us = 400'000;
  CoreDriver driver(options, SmallLimits(40, 64));
  const GenerationRequest request = driver.Request(20, 40, 2);
  const uint64_t id = driver.Submit(request);
  const uint64_t too_long = driver.Submit(driver.Request(800, 40, 3));
  for (int i = 0; i < 5; ++i) {
    driver.Step();
  }
  driver.CpuWorkerDown();
  ASSERT_TRUE(driver.RunToEnd(100));
  EXPECT_EQ(driver.outcome(id).tokens, driver.Expected(request));
  EXPECT_EQ(driver.snapshot().recomputes, 1u);
  EXPECT_GT(driver.snapshot().decode_tokens_gpu, 0u);
  EXPECT_TRUE(absl::IsUnavailable(driver.outcome(too_long).last.error));
  // Back again: the CPU tier is used as before.
  driver.CpuWorkerUp();
  const uint64_t decoded = driver.snapshot().decode_tokens_cpu;
  driver.Submit(driver.Request(20, 40, 4));
  ASSERT_TRUE(driver.RunToEnd(100));
  EXPECT_EQ(driver.snapshot().decode_tokens_cpu, decoded + 39);
}

TEST(EngineCoreTest, WhatOnlyTheCpuTierHoldsWaitsForItsReturn) {
  EngineOptions options = Options(OffloadPolicy::kAllCpu);
  options.cpu_worker_away_limit_us = 200'000;
  CoreDriver driver(options, SmallLimits(40, 64));
  const GenerationRequest request = driver.Request(800, 40, 2);
  const uint64_t id = driver.Submit(request);
  for (int i = 0; i < 10; ++i) {
    driver.Step();
  }
  ASSERT_EQ(driver.snapshot().cpu_decode, 1);
  driver.CpuWorkerDown();
  for (int i = 0; i < 300; ++i) {
    driver.Step();
  }
  const size_t paused_at = driver.outcome(id).tokens.size();
  EXPECT_TRUE(driver.outcome(id).last.error.ok());
  EXPECT_EQ(driver.snapshot().recomputes, 0u);
  driver.CpuWorkerUp();
  ASSERT_TRUE(driver.RunToEnd(1000));
  EXPECT_LT(paused_at, 40u);
  EXPECT_EQ(driver.outcome(id).tokens, driver.Expected(request));
}

TEST(EngineCoreTest, CpuStepsThatKeepFailingAreGivenUp) {
  EngineOptions options = Options(OffloadPolicy::kAllCpu);
  options.cpu_worker_away_limit_us = 2'000'000;
  CoreDriver driver(options, SmallLimits(40, 64));
  const GenerationRequest request = driver.Request(20, 10, 2);
  const uint64_t id = driver.Submit(request);
  driver.runner().SetCpuWorkerUp(false);  // the link notices nothing
  ASSERT_TRUE(driver.RunToEnd(1000));
  EXPECT_EQ(driver.outcome(id).tokens, driver.Expected(request));
  EXPECT_LT(driver.snapshot().aborted_steps_cpu_worker_lost, 12u) << "repeated ever more rarely";
}

TEST(EngineCoreTest, InternalErrorsEndTheStepsSequencesAndNoOthers) {
  CoreDriver driver(Options(OffloadPolicy::kOff, 20), SmallLimits(40, 0));
  const uint64_t first = driver.Submit(driver.Request(20, 40, 1));
  const GenerationRequest later = driver.Request(20, 10, 2);
  const uint64_t second = driver.Submit(later);
  driver.runner().FailNext(absl::InternalError("broken"));
  ASSERT_TRUE(driver.RunToEnd());
  EXPECT_TRUE(absl::IsInternal(driver.outcome(first).last.error));
  EXPECT_EQ(driver.outcome(second).tokens, driver.Expected(later));
  EXPECT_EQ(driver.snapshot().aborted_steps_other, 1u);
}

TEST(EngineCoreTest, DeviceStepsThatStayUnavailableDoNotLoop) {
  CoreDriver driver(Options(OffloadPolicy::kOff), SmallLimits(40, 0));
  const uint64_t id = driver.Submit(driver.Request(20, 40, 1));
  for (int i = 0; i < 3; ++i) {
    driver.runner().FailNext(absl::UnavailableError("device is gone"));
  }
  ASSERT_TRUE(driver.RunToEnd(4));
  EXPECT_TRUE(absl::IsUnavailable(driver.outcome(id).last.error));
}

TEST(EngineCoreTest, PrioritiesOvertakeInTheQueue) {
  EngineOptions options = Options(OffloadPolicy::kOff);
  options.max_num_seqs = 1;
  CoreDriver driver(options, SmallLimits(40, 0));
  driver.Submit(driver.Request(5, 4, 1));
  driver.Step();
  const uint64_t plain = driver.Submit(driver.Request(5, 4, 2));
  GenerationRequest urgent_request = driver.Request(5, 4, 3);
  urgent_request.priority = -1;
  const uint64_t urgent = driver.Submit(urgent_request);
  while (!driver.outcome(urgent).ended) {
    ASSERT_TRUE(driver.Step());
  }
  EXPECT_THAT(driver.outcome(plain).tokens, IsEmpty());
  EXPECT_TRUE(driver.RunToEnd());
}

TEST(EngineCoreTest, AgedWaitersGoBeforePriorities) {
  EngineOptions options = Options(OffloadPolicy::kOff);
  options.max_num_seqs = 1;
  CoreDriver driver(options, SmallLimits(40, 0));
  driver.step_us = 1'000'000;
  const uint64_t plain = driver.Submit(driver.Request(5, 4, 2));
  for (int i = 0; i < 200 && !driver.outcome(plain).ended; ++i) {
    GenerationRequest urgent = driver.Request(5, 4, i);
    urgent.priority = -1;
    driver.Submit(urgent);
    driver.Step();
  }
  EXPECT_TRUE(driver.outcome(plain).ended);
}

}  // namespace
}  // namespace tandem::gpu_worker
