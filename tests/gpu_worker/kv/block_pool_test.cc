#include "gpu_worker/kv/block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem::gpu_worker {
namespace {

using testing::ElementsAre;

TEST(BlockPoolTest, HandsOutOnlyWhatIsUsable) {
  BlockPool pool(5, 16);
  std::vector<int32_t> table;
  EXPECT_FALSE(pool.Allocate(7, 1, &table));
  pool.SetUsable(3);
  EXPECT_TRUE(pool.Allocate(7, 3, &table));
  EXPECT_THAT(table, ElementsAre(0, 1, 2));
  EXPECT_FALSE(pool.Allocate(7, 1, &table));
  EXPECT_EQ(table.size(), 3u);
  pool.SetUsable(2);  // never shrinks
  EXPECT_EQ(pool.usable_blocks(), 3);
  pool.SetUsable(99);
  EXPECT_EQ(pool.usable_blocks(), 5);
  EXPECT_EQ(pool.free_blocks(), 2);
  EXPECT_EQ(pool.used_blocks(), 3);
}

TEST(BlockPoolTest, KnowsOwnersAndTakesBack) {
  BlockPool pool(3, 16);
  pool.SetUsable(3);
  std::vector<int32_t> first;
  std::vector<int32_t> second;
  ASSERT_TRUE(pool.Allocate(1, 2, &first));
  ASSERT_TRUE(pool.Allocate(2, 1, &second));
  EXPECT_THAT(pool.owners(), ElementsAre(1, 1, 2));
  pool.Free(1, first);
  EXPECT_THAT(pool.owners(), ElementsAre(BlockPool::kFree, BlockPool::kFree, 2));
  EXPECT_EQ(pool.free_blocks(), 2);
}

TEST(BlockPoolTest, BlocksForRoundsUp) {
  const BlockPool pool(1, 16);
  EXPECT_EQ(pool.BlocksFor(0), 0);
  EXPECT_EQ(pool.BlocksFor(1), 1);
  EXPECT_EQ(pool.BlocksFor(16), 1);
  EXPECT_EQ(pool.BlocksFor(17), 2);
}

TEST(BlockPoolDeathTest, FreeingAnothersBlockIsABug) {
  BlockPool pool(2, 16);
  pool.SetUsable(2);
  std::vector<int32_t> table;
  ASSERT_TRUE(pool.Allocate(1, 1, &table));
  EXPECT_DEATH(pool.Free(2, table), "CHECK failed");
}

}  // namespace
}  // namespace tandem::gpu_worker
