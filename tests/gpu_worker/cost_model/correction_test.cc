#include "gpu_worker/cost_model/correction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace tandem::gpu_worker {
namespace {

constexpr double kStepUs = 50e3;

StepPrediction Predicted(double linear_us) {
  StepPrediction predicted;
  predicted.total_us = linear_us;
  predicted.linear_us = linear_us;
  return predicted;
}

StepTimings Measured(double linear_us) {
  StepTimings measured;
  measured.total_us = linear_us;
  measured.linear_us = linear_us;
  return measured;
}

// Steps that take `slowdown` times what the tables say, until `seconds` have passed.
void RunSteps(double slowdown, double step_us, double seconds, Corrections* corrections) {
  for (double us = 0; us < seconds * 1e6; us += step_us * slowdown) {
    UpdateCorrections(Predicted(step_us * corrections->linear), Measured(step_us * slowdown),
                      corrections);
  }
}

TEST(CorrectionTest, FollowsASlowdownWithinTwoSecondsAndForgetsItAsFast) {
  for (const double step_us : {12e3, 50e3, 400e3}) {
    Corrections corrections;
    RunSteps(2.0, step_us, 2.0, &corrections);
    EXPECT_NEAR(corrections.linear, 2.0, 0.15) << step_us;
    RunSteps(1.0, step_us, 2.0, &corrections);
    EXPECT_NEAR(corrections.linear, 1.0, 0.15) << step_us;
    EXPECT_EQ(corrections.prefill, 1.0) << "terms that were not measured stay";
  }
}

TEST(CorrectionTest, OneOddStepMovesLittle) {
  Corrections corrections;
  UpdateCorrections(Predicted(12e3), Measured(24e3), &corrections);
  EXPECT_LT(corrections.linear, 1.06);
}

TEST(CorrectionTest, StaysBoundedWhateverIsMeasured) {
  Corrections corrections;
  for (int step = 0; step < 200; ++step) {
    UpdateCorrections(Predicted(kStepUs * corrections.linear), Measured(1e12), &corrections);
  }
  EXPECT_LE(corrections.linear, kMaxCorrection);
  for (int step = 0; step < 2000; ++step) {
    UpdateCorrections(Predicted(kStepUs * corrections.linear), Measured(1e-6), &corrections);
  }
  EXPECT_GE(corrections.linear, 1 / kMaxCorrection);
  const double before = corrections.linear;
  for (const double odd : {0.0, -5.0, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    UpdateCorrections(Predicted(kStepUs * corrections.linear), Measured(odd), &corrections);
  }
  EXPECT_EQ(corrections.linear, before);
}

StepPrediction CpuStep() {
  StepPrediction predicted;
  predicted.total_us = 100e3;
  predicted.cpu_decode_us = 40e3;
  predicted.cpu_wait_us = 10e3;  // 30 ms are hidden
  predicted.cpu_exchange_us = 2e3;
  return predicted;
}

TEST(CorrectionTest, SeesTheCpuThroughWhatIsExposed) {
  StepTimings measured;
  measured.total_us = 140e3;
  measured.cpu_decode_us = 50e3;
  Corrections corrections;
  const auto ratios = UpdateCorrections(CpuStep(), measured, &corrections);
  EXPECT_THAT(ratios, testing::Contains(testing::Pair(testing::StrEq("cpu_decode"), 2.0)));
  EXPECT_THAT(ratios, testing::Contains(testing::Pair(testing::StrEq("total"), 1.4)));
  EXPECT_GT(corrections.cpu_decode, 1.2);
  // Nothing exposed and nothing expected to be: no change.
  StepPrediction hidden = CpuStep();
  hidden.cpu_wait_us = 0;
  measured.cpu_decode_us = 0;
  const double before = corrections.cpu_decode;
  UpdateCorrections(hidden, measured, &corrections);
  EXPECT_NEAR(corrections.cpu_decode, before, 1e-9);
}

// A neighbour is seen although all of the CPU's time is hidden behind the device.
TEST(CorrectionTest, WhatTheCpuWorkerSaysCountsMore) {
  StepPrediction hidden = CpuStep();
  hidden.cpu_wait_us = 0;
  StepTimings measured;
  measured.total_us = 100e3;
  measured.cpu_busy_us = 78e3;
  Corrections corrections;
  const auto ratios = UpdateCorrections(hidden, measured, &corrections);
  EXPECT_THAT(ratios, testing::Contains(testing::Pair(testing::StrEq("cpu_decode"), 2.0)));
  EXPECT_GT(corrections.cpu_decode, 1.1);
}

// Each small batch wakes threads: that is not laid upon the bytes of large ones.
TEST(CorrectionTest, WhatSmallBatchesTakeLongerIsNoRate) {
  constexpr double kPosts = 32;
  Corrections corrections;
  const auto step = [&](double table_us, double true_us) {
    StepPrediction predicted;
    predicted.total_us = 100e3;
    predicted.cpu_posts = kPosts;
    predicted.cpu_exchange_us = kPosts * 50;
    predicted.cpu_fixed_us = kPosts * corrections.cpu_fixed_us;
    predicted.cpu_decode_us =
        kPosts * (corrections.cpu_decode * table_us + corrections.cpu_fixed_us);
    StepTimings measured;
    measured.total_us = 100e3;
    measured.cpu_busy_us = kPosts * (true_us - 50);
    UpdateCorrections(predicted, measured, &corrections);
  };
  for (int i = 0; i < 100; ++i) {
    step(80, 300);
  }
  EXPECT_NEAR(corrections.cpu_decode * 80 + corrections.cpu_fixed_us, 300, 10);
  EXPECT_LT(corrections.cpu_decode, 2.0) << "a ratio would be 3.75";
  for (int i = 0; i < 400; ++i) {
    step(80, 300);
    step(2000, 2220);
  }
  EXPECT_NEAR(corrections.cpu_decode, 1.0, 0.05);
  EXPECT_NEAR(corrections.cpu_fixed_us, 220, 20);
}

TEST(CorrectionTest, LaunchesFollowStepsOfTheDeviceAlone) {
  for (const double more_us : {20.0, -4.0}) {
    Corrections corrections;
    for (int step = 0; step < 100; ++step) {
      StepPrediction predicted = Predicted(30e3);
      predicted.launched = 100;
      predicted.total_us += 100 * (10 + corrections.launch_us);
      StepTimings measured = Measured(30e3);
      measured.total_us += 100 * (10 + more_us);
      UpdateCorrections(predicted, measured, &corrections);
    }
    EXPECT_NEAR(corrections.launch_us, more_us, 0.5);
    EXPECT_NEAR(corrections.linear, 1, 1e-9);
  }
}

TEST(CorrectionTest, OverlapFollowsBothWaysAndIsForgottenWithoutCpuWork) {
  for (const auto& [believed, truth] : {std::pair(1.0, 0.3), std::pair(0.2, 0.9)}) {
    const auto total_us = [](double overlap) { return 100e3 + (1 - overlap) * 60e3; };
    Corrections corrections;
    for (int step = 0; step < 100; ++step) {
      StepPrediction predicted = Predicted(100e3);
      predicted.cpu_decode_us = 60e3;
      predicted.walk_us = 100e3;
      predicted.serial_us = 160e3;
      predicted.overlap = std::clamp(believed + corrections.overlap, 0.0, 1.0);
      predicted.total_us = total_us(predicted.overlap);
      StepTimings measured = Measured(100e3);
      measured.cpu_busy_us = 60e3;
      measured.total_us = total_us(truth);
      UpdateCorrections(predicted, measured, &corrections);
    }
    EXPECT_NEAR(believed + corrections.overlap, truth, 0.02);
    RunSteps(1.0, kStepUs, 15.0, &corrections);
    EXPECT_NEAR(corrections.overlap, 0, 0.05);
  }
}

// A step whose terms are off says nothing about overlap.
TEST(CorrectionTest, OverlapWaitsForTheTerms) {
  StepPrediction predicted = Predicted(100e3);
  predicted.cpu_decode_us = 60e3;
  predicted.walk_us = 100e3;
  predicted.serial_us = 160e3;
  StepTimings measured = Measured(150e3);
  measured.cpu_busy_us = 60e3;
  Corrections corrections;
  UpdateCorrections(predicted, measured, &corrections);
  EXPECT_EQ(corrections.overlap, 0);
  EXPECT_GT(corrections.linear, 1);
}

TEST(CorrectionTest, AnUnusedCpuIsTriedAgain) {
  Corrections corrections;
  corrections.cpu_decode = 6;
  RunSteps(1.0, kStepUs, 10.0, &corrections);
  EXPECT_LT(corrections.cpu_decode, 1.3);
}

// Each time that it turns out to be as slow as before it is left alone for longer; once it is not,
// everything is as at first.
TEST(CorrectionTest, AnUnusedCpuThatStaysSlowIsTriedLessOften) {
  Corrections corrections;
  const auto use = [&corrections](double slowdown) {
    for (int step = 0; step < 60; ++step) {
      StepPrediction predicted = CpuStep();
      predicted.cpu_decode_us = 40e3 * corrections.cpu_decode;
      predicted.cpu_fixed_us = corrections.cpu_fixed_us;
      StepTimings measured;
      measured.total_us = predicted.total_us;
      measured.cpu_busy_us = 40e3 * slowdown - predicted.cpu_exchange_us;
      UpdateCorrections(predicted, measured, &corrections);
    }
  };
  double after = 0;  // resting for ten seconds
  for (int trial = 0; trial < 4; ++trial) {
    use(6);
    EXPECT_NEAR(corrections.cpu_decode, 6, 0.5);
    RunSteps(1.0, kStepUs, 10.0, &corrections);
    EXPECT_GT(corrections.cpu_decode, after);
    after = corrections.cpu_decode;
  }
  EXPECT_GT(after, 4);
  use(1);
  EXPECT_EQ(corrections.cpu_forget_us, kForgetTimeUs);
}

}  // namespace
}  // namespace tandem::gpu_worker
