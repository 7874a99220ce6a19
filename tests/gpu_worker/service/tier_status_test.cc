#include "gpu_worker/service/tier_status.h"

#include <gtest/gtest.h>

namespace tandem::gpu_worker {
namespace {

TEST(TierStatus, IsUpWhenAllAreAndDownWhenTheFirstIsLost) {
  TierStatus status(3);
  EXPECT_FALSE(status.OnUp(0));
  EXPECT_FALSE(status.OnUp(2));
  EXPECT_TRUE(status.OnUp(1));
  EXPECT_FALSE(status.OnUp(1));
  EXPECT_TRUE(status.OnDown(2));
  EXPECT_FALSE(status.OnDown(0));
  EXPECT_FALSE(status.OnUp(2));
  EXPECT_TRUE(status.OnUp(0));
}

TEST(TierStatus, BlocksAreReadyWhereEveryShardIs) {
  TierStatus status(2);
  EXPECT_EQ(status.OnBlocksReady(0, 10), 0);
  EXPECT_EQ(status.OnBlocksReady(1, 4), 4);
  EXPECT_EQ(status.OnBlocksReady(1, 12), 10);
}

}  // namespace
}  // namespace tandem::gpu_worker
