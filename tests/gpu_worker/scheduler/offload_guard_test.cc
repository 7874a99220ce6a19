#include "gpu_worker/scheduler/offload_guard.h"

#include <gtest/gtest.h>

namespace tandem::gpu_worker {
namespace {

int64_t Feed(OffloadGuard& guard, double ratio, int steps, int64_t now_us) {
  for (int i = 0; i < steps; ++i) {
    if (guard.Observe(ratio, 1.0, now_us)) {
      return i + 1;
    }
  }
  return 0;
}

TEST(OffloadGuardTest, SwitchesOffWhatDoesNotPayAndTriesAgain) {
  OffloadGuard guard;
  EXPECT_TRUE(guard.OffloadPays(0));
  EXPECT_EQ(Feed(guard, 0.8, 100, 1'000'000), 16) << "not before it has seen enough";
  EXPECT_FALSE(guard.OffloadPays(1'000'001));
  EXPECT_FALSE(guard.OffloadPays(2'999'999));
  EXPECT_TRUE(guard.OffloadPays(3'000'000));
  // The second pause is longer.
  EXPECT_EQ(Feed(guard, 0.8, 100, 3'000'000), 16);
  EXPECT_FALSE(guard.OffloadPays(6'999'999));
  EXPECT_TRUE(guard.OffloadPays(7'000'000));
}

TEST(OffloadGuardTest, LeavesAloneWhatPays) {
  OffloadGuard guard;
  EXPECT_EQ(Feed(guard, 1.0, 1000, 0), 0);
  EXPECT_EQ(Feed(guard, 0.97, 1000, 0), 0);
  EXPECT_TRUE(guard.OffloadPays(0));
}

TEST(OffloadGuardTest, IgnoresMomentsWithoutDeviceWork) {
  OffloadGuard guard;
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(guard.Observe(1.0, 0.0, 0));
    EXPECT_FALSE(guard.Observe(0.0, 1.0, 0));
  }
}

TEST(OffloadGuardTest, OneSlowStepIsNoVerdict) {
  OffloadGuard guard;
  Feed(guard, 1.3, 50, 0);
  EXPECT_FALSE(guard.Observe(0.01, 1.0, 0));
  EXPECT_TRUE(guard.OffloadPays(0));
}

}  // namespace
}  // namespace tandem::gpu_worker
