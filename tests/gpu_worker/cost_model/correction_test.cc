#include "gpu_worker/cost_model/correction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace tandem::gpu_worker {
namespace {

StepPrediction Predicted(double factor) {
  StepPrediction predicted;
  predicted.total_us = 1000 * factor;
  predicted.linear_us = 1000 * factor;
  return predicted;
}

StepTimings Measured(double linear_us) {
  StepTimings measured;
  measured.total_us = linear_us;
  measured.linear_us = linear_us;
  return measured;
}

TEST(CorrectionTest, FollowsASlowdownAndForgetsIt) {
  Corrections corrections;
  for (int step = 0; step < 40; ++step) {
    UpdateCorrections(Predicted(corrections.linear), Measured(2000), &corrections);
  }
  EXPECT_NEAR(corrections.linear, 2.0, 0.05);
  for (int step = 0; step < 40; ++step) {
    UpdateCorrections(Predicted(corrections.linear), Measured(1000), &corrections);
  }
  EXPECT_NEAR(corrections.linear, 1.0, 0.05);
  EXPECT_EQ(corrections.prefill, 1.0) << "terms that were not measured stay";
}

TEST(CorrectionTest, StaysBoundedWhateverIsMeasured) {
  Corrections corrections;
  for (int step = 0; step < 200; ++step) {
    UpdateCorrections(Predicted(corrections.linear), Measured(1e12), &corrections);
  }
  EXPECT_LE(corrections.linear, kMaxCorrection);
  for (int step = 0; step < 400; ++step) {
    UpdateCorrections(Predicted(corrections.linear), Measured(1e-6), &corrections);
  }
  EXPECT_GE(corrections.linear, 1 / kMaxCorrection);
  const double before = corrections.linear;
  for (const double odd : {0.0, -5.0, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    UpdateCorrections(Predicted(corrections.linear), Measured(odd), &corrections);
  }
  EXPECT_EQ(corrections.linear, before);
}

TEST(CorrectionTest, SeesTheCpuThroughWhatIsExposed) {
  StepPrediction predicted;
  predicted.total_us = 1000;
  predicted.cpu_decode_us = 400;
  predicted.cpu_wait_us = 100;  // 300 are hidden
  StepTimings measured;
  measured.total_us = 1400;
  measured.cpu_decode_us = 500;
  Corrections corrections;
  const auto ratios = UpdateCorrections(predicted, measured, &corrections);
  EXPECT_NEAR(corrections.cpu_decode, 1 + kCorrectionWeight * ((300.0 + 500) / 400 - 1), 1e-9);
  EXPECT_THAT(ratios, testing::Contains(testing::Pair(testing::StrEq("total"), 1.4)));
  // Nothing exposed and nothing expected to be: no change.
  predicted.cpu_wait_us = 0;
  measured.cpu_decode_us = 0;
  const double before = corrections.cpu_decode;
  UpdateCorrections(predicted, measured, &corrections);
  EXPECT_NEAR(corrections.cpu_decode, before, 1e-9);
}

}  // namespace
}  // namespace tandem::gpu_worker
