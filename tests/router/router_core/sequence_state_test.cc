#include "router/router_core/sequence_state.h"

#include <gtest/gtest.h>

namespace tandem::router {
namespace {

using Step = Decision::Step;

constexpr int64_t kSecond = 1'000'000;

AttemptEnd Lost() { return {absl::StatusCode::kUnavailable, "Socket closed"}; }
AttemptEnd FromWorker(absl::StatusCode code) { return {code, "no", "prompt", "why"}; }

class SequenceStateTest : public testing::Test {
 protected:
  void Tokens(std::vector<int32_t> tokens) { state_.OnTokens(tokens); }

  SequenceState state_{RecoveryLimits()};
};

TEST_F(SequenceStateTest, FirstDispatchWithoutWorkerIsRefused) {
  const Decision decision = state_.OnNoWorker(0);
  EXPECT_EQ(decision.step, Step::kFail);
  EXPECT_EQ(decision.error.http_status, 503);
  EXPECT_GT(decision.error.retry_after_s, 0);
}

TEST_F(SequenceStateTest, WhatBelongsToARunningRequestWaitsAtItsFirstDispatch) {
  state_.OnSiblingDispatched(kSecond);
  const Decision decision = state_.OnNoWorker(2 * kSecond);
  EXPECT_EQ(decision.step, Step::kWait);
  EXPECT_EQ(decision.deadline_us, 31 * kSecond);
  EXPECT_EQ(state_.OnWaitExpired().http_status, 502);
  EXPECT_EQ(state_.OnNoWorker(31 * kSecond).step, Step::kFail);
}

TEST_F(SequenceStateTest, LostWorkerLeadsToAnotherWithTheTokens) {
  state_.OnDispatched(3);
  Tokens({7, 8});
  Tokens({9});
  const Decision decision = state_.OnAttemptEnded(Lost(), 5 * kSecond);
  EXPECT_EQ(decision.step, Step::kDispatch);
  EXPECT_EQ(decision.reason, RecoveryReason::kUnavailable);
  EXPECT_TRUE(state_.resumed());
  EXPECT_EQ(state_.generated(), (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ(state_.excluded_workers(), std::vector<int>{3});
}

TEST_F(SequenceStateTest, ACutStreamOfAnyNameLeadsToAWait) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kUnavailable, absl::StatusCode::kCancelled, absl::StatusCode::kUnknown}) {
    SequenceState state{RecoveryLimits()};
    state.OnDispatched(0);
    EXPECT_EQ(state.OnAttemptEnded({code, "Stream removed"}, 0).step, Step::kDispatch);
    EXPECT_EQ(state.OnNoWorker(0).step, Step::kWait) << static_cast<int>(code);
  }
}

TEST_F(SequenceStateTest, WithoutAnotherWorkerItWaitsForABoundedTime) {
  state_.OnDispatched(0);
  Tokens({7});
  state_.OnAttemptEnded(Lost(), 5 * kSecond);
  const Decision decision = state_.OnNoWorker(6 * kSecond);
  EXPECT_EQ(decision.step, Step::kWait);
  EXPECT_EQ(decision.deadline_us, 35 * kSecond);
  EXPECT_FALSE(decision.unless_refused);
  EXPECT_EQ(state_.OnWaitExpired().http_status, 502);
  state_.OnWorkerReady();
  EXPECT_TRUE(state_.excluded_workers().empty());
  EXPECT_EQ(state_.OnNoWorker(35 * kSecond).step, Step::kFail);
}

TEST_F(SequenceStateTest, BeforeTheFirstTokenADrainEndsTheWait) {
  state_.OnDispatched(0);
  const Decision decision =
      state_.OnAttemptEnded(FromWorker(absl::StatusCode::kUnavailable), kSecond);
  EXPECT_EQ(decision.step, Step::kDispatch);
  EXPECT_FALSE(state_.resumed());
  const Decision none = state_.OnNoWorker(kSecond);
  EXPECT_EQ(none.step, Step::kWait);
  EXPECT_TRUE(none.unless_refused);
  EXPECT_EQ(state_.OnRefused().http_status, 503);
  EXPECT_GT(state_.OnRefused().retry_after_s, 0);
}

TEST_F(SequenceStateTest, FullQueuesEverywhereAre429) {
  state_.OnDispatched(0);
  EXPECT_EQ(state_.OnAttemptEnded(FromWorker(absl::StatusCode::kResourceExhausted), 0).step,
            Step::kDispatch);
  const Decision none = state_.OnNoWorker(0);
  EXPECT_EQ(none.step, Step::kFail);
  EXPECT_EQ(none.error.http_status, 429);
  EXPECT_GT(none.error.retry_after_s, 0);
}

TEST_F(SequenceStateTest, WhatTheWorkerLacksIsSaid) {
  state_.OnDispatched(0);
  const Decision decision = state_.OnAttemptEnded(FromWorker(absl::StatusCode::kUnimplemented), 0);
  EXPECT_EQ(decision.step, Step::kFail);
  EXPECT_EQ(decision.error.http_status, 501);
}

TEST_F(SequenceStateTest, ABadRequestIsNotTriedAgain) {
  state_.OnDispatched(0);
  const Decision decision =
      state_.OnAttemptEnded(FromWorker(absl::StatusCode::kInvalidArgument), 0);
  EXPECT_EQ(decision.step, Step::kFail);
  EXPECT_EQ(decision.error.http_status, 400);
  EXPECT_EQ(decision.error.param, "prompt");
  EXPECT_EQ(decision.error.code, "why");
}

TEST_F(SequenceStateTest, DeadlineIs504) {
  state_.OnDispatched(0);
  EXPECT_EQ(
      state_.OnAttemptEnded(FromWorker(absl::StatusCode::kDeadlineExceeded), 0).error.http_status,
      504);
}

TEST_F(SequenceStateTest, AWorkersOwnErrorIsTriedElsewhereAndElse502) {
  state_.OnDispatched(0);
  EXPECT_EQ(state_.OnAttemptEnded(FromWorker(absl::StatusCode::kInternal), 0).step,
            Step::kDispatch);
  EXPECT_EQ(state_.OnNoWorker(0).error.http_status, 502);
}

TEST_F(SequenceStateTest, AStreamThatEndsWithoutAReasonIsAnError) {
  state_.OnDispatched(0);
  Tokens({1});
  const Decision decision = state_.OnAttemptEnded({absl::StatusCode::kOk}, 0);
  EXPECT_EQ(decision.step, Step::kDispatch);
  EXPECT_EQ(decision.reason, RecoveryReason::kWorkerError);
}

TEST_F(SequenceStateTest, ARequestThatKillsWorkersIsGivenUp) {
  Decision decision;
  int workers = 0;
  do {
    state_.OnDispatched(workers++);
    decision = state_.OnAttemptEnded(Lost(), 0);
  } while (decision.step == Step::kDispatch && workers < 100);
  EXPECT_EQ(workers, RecoveryLimits().max_attempts_without_token);
  EXPECT_EQ(decision.error.http_status, 502);
}

TEST_F(SequenceStateTest, ProgressAllowsMoreAttemptsUpToABound) {
  Decision decision;
  int workers = 0;
  do {
    state_.OnDispatched(workers++);
    Tokens({1});
    decision = state_.OnAttemptEnded(Lost(), 0);
  } while (decision.step == Step::kDispatch && workers < 100);
  EXPECT_EQ(workers, RecoveryLimits().max_attempts);
}

TEST(ApiErrorTest, TypesFollowTheStatus) {
  EXPECT_EQ(ErrorType(400), "invalid_request_error");
  EXPECT_EQ(ErrorType(401), "authentication_error");
  EXPECT_EQ(ErrorType(413), "invalid_request_error");
  EXPECT_EQ(ErrorType(429), "rate_limit_error");
  EXPECT_EQ(ErrorType(502), "server_error");
}

}  // namespace
}  // namespace tandem::router
