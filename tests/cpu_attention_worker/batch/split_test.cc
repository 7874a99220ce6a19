#include "cpu_attention_worker/batch/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace tandem::cpu_attention_worker {
namespace {

int64_t WorkOf(const Task& task) {
  return task.num_tokens * (task.kv_head_end - task.kv_head_begin);
}

// Every (token, head) of every row is in exactly one task, and the tables agree with the tasks.
void CheckInvariants(const std::vector<int64_t>& rows, const SplitShape& shape,
                     const Split& split) {
  ASSERT_EQ(split.rows.size(), rows.size());
  ASSERT_EQ(split.thread_begin.size(), static_cast<size_t>(shape.num_threads) + 1);
  EXPECT_EQ(split.thread_begin.front(), 0);
  EXPECT_EQ(split.thread_begin.back(), static_cast<int32_t>(split.tasks.size()));
  EXPECT_TRUE(std::is_sorted(split.thread_begin.begin(), split.thread_begin.end()));
  std::vector<std::vector<int64_t>> covered(rows.size());
  std::vector<int32_t> tasks(rows.size(), 0);
  for (size_t row = 0; row < rows.size(); ++row) {
    covered[row].assign(static_cast<size_t>(shape.num_kv_heads), 0);
  }
  for (const Task& task : split.tasks) {
    const auto row = static_cast<size_t>(task.row);
    EXPECT_EQ(task.first_token % kSegmentGrain, 0);
    EXPECT_GE(task.num_tokens, 1);
    ++tasks[row];
    ASSERT_LT(task.kv_head_begin, task.kv_head_end);
    for (int32_t head = task.kv_head_begin; head < task.kv_head_end; ++head) {
      // Tasks come in the order of tokens: each starts where the last of its head ended.
      EXPECT_EQ(covered[row][static_cast<size_t>(head)], task.first_token);
      covered[row][static_cast<size_t>(head)] += task.num_tokens;
    }
  }
  int32_t partials = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    for (const int64_t tokens : covered[row]) {
      EXPECT_EQ(tokens, rows[row]);
    }
    EXPECT_EQ(split.rows[row].num_tasks, tasks[row]);
    if (split.rows[row].num_segments > 1) {
      EXPECT_EQ(split.rows[row].first_partial, partials);
      partials += split.rows[row].num_segments;
    }
  }
  EXPECT_EQ(split.num_partials, partials);
}

// Largest share of a thread relative to an even one, before any help.
double Imbalance(const Split& split, int32_t num_threads) {
  int64_t total = 0;
  int64_t largest = 0;
  for (int32_t thread = 0; thread < num_threads; ++thread) {
    int64_t work = 0;
    for (int32_t i = split.thread_begin[static_cast<size_t>(thread)];
         i < split.thread_begin[static_cast<size_t>(thread) + 1]; ++i) {
      work += WorkOf(split.tasks[static_cast<size_t>(i)]);
    }
    total += work;
    largest = std::max(largest, work);
  }
  return static_cast<double>(largest) * num_threads / static_cast<double>(total);
}

TEST(SplitBatch, RandomBatchesAreCoveredExactlyOnce) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    SplitShape shape;
    shape.num_kv_heads = static_cast<int32_t>(1 + random() % 9);
    shape.block_tokens = random() % 2 == 0 ? 128 : 16;
    shape.num_threads = static_cast<int32_t>(1 + random() % 9);
    std::vector<int64_t> rows(random() % 20);
    const int64_t most = random() % 3 == 0 ? 50'000 : 500;
    for (int64_t& tokens : rows) {
      tokens = static_cast<int64_t>(1 + random() % static_cast<uint64_t>(most));
    }
    CheckInvariants(rows, shape, SplitBatch(rows, shape));
  }
}

TEST(SplitBatch, OneLongSequenceUsesAllThreads) {
  const std::vector<int64_t> rows = {32'768};
  for (int32_t threads : {2, 3, 8, 16}) {
    EXPECT_LT(Imbalance(SplitBatch(rows, {8, 128, threads}), threads), 1.05) << threads;
  }
}

// Long ones next to short ones: nobody gets more than an even share and half a block.
TEST(SplitBatch, RaggedBatchesAreAsEvenAsBlocksAllow) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 300; ++round) {
    const auto threads = static_cast<int32_t>(1 + random() % 32);
    std::vector<int64_t> rows(1 + random() % 40);
    int64_t total = 0;
    for (int64_t& tokens : rows) {
      tokens = static_cast<int64_t>(50 + random() % (random() % 4 == 0 ? 20'000 : 700));
      total += tokens;
    }
    if (total < 512 * threads) {
      continue;
    }
    const double share = static_cast<double>(total) / threads;
    EXPECT_LE(Imbalance(SplitBatch(rows, {8, 128, threads}), threads), 1.0 + 130.0 / share)
        << "threads " << threads << " total " << total << " round " << round;
  }
}

// So that who helps at the end finds something to take, and nobody waits long.
TEST(SplitBatch, SegmentsBecomeShortTowardsTheEndOfAShare) {
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>(16, 1024), std::vector<int64_t>(1, 32'768)}) {
    const Split split = SplitBatch(rows, {8, 128, 2});
    for (size_t thread = 0; thread < 2; ++thread) {
      const Task& first = split.tasks[static_cast<size_t>(split.thread_begin[thread])];
      const Task& last = split.tasks[static_cast<size_t>(split.thread_begin[thread + 1]) - 1];
      EXPECT_GE(first.num_tokens, 1024);
      EXPECT_EQ(last.num_tokens, 128);
    }
  }
}

// Batches below 512 tokens a thread: cut by heads, so to within a head.
TEST(SplitBatch, SmallBatchesAreAsEvenAsHeadsAllow) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 300; ++round) {
    const auto threads = static_cast<int32_t>(2 + random() % 15);
    const auto heads = static_cast<int32_t>(1 + random() % 16);
    std::vector<int64_t> rows(1 + random() % 12);
    int64_t total = 0;
    int64_t longest = 0;
    for (int64_t& tokens : rows) {
      tokens = static_cast<int64_t>(1 + random() % 300);
      total += tokens;
      longest = std::max(longest, tokens);
    }
    if (total >= 512 * threads) {
      continue;
    }
    const Split split = SplitBatch(rows, {heads, 128, threads});
    CheckInvariants(rows, {heads, 128, threads}, split);
    const double share = static_cast<double>(total * heads) / threads;
    // One head of the longest segment too many at either end of a share.
    const double unit = std::min<double>(static_cast<double>(longest), std::max(80.0, share));
    EXPECT_LE(Imbalance(split, threads), 1.0 + 1.1 * unit / share)
        << "threads " << threads << " heads " << heads << " round " << round;
  }
}

TEST(SplitBatch, ManyShortOnesBalanceWithoutMerging) {
  const std::vector<int64_t> rows(500, 100);
  for (int32_t threads : {2, 7, 16}) {
    const Split split = SplitBatch(rows, {8, 128, threads});
    EXPECT_EQ(split.num_partials, 0);
    EXPECT_EQ(split.tasks.size(), rows.size());
    EXPECT_LT(Imbalance(split, threads), 1.05);
  }
}

TEST(SplitBatch, OneShortSequenceIsCutByHeads) {
  const std::vector<int64_t> rows = {128};
  const Split split = SplitBatch(rows, {8, 128, 2});
  ASSERT_EQ(split.tasks.size(), 2u);
  EXPECT_EQ(split.num_partials, 0);
  EXPECT_EQ(split.tasks[1].kv_head_begin, 4);
  EXPECT_EQ(split.thread_begin[1], 1);
}

TEST(SplitBatch, OneHeadIsCutByTokens) {
  const std::vector<int64_t> rows = {1000};
  const Split split = SplitBatch(rows, {1, 128, 2});
  ASSERT_EQ(split.tasks.size(), 4u);
  EXPECT_EQ(split.num_partials, 4);
  EXPECT_LT(Imbalance(split, 2), 1.1);
}

TEST(SplitBatch, NothingToDo) {
  const Split split = SplitBatch({}, {8, 128, 4});
  EXPECT_TRUE(split.tasks.empty());
  EXPECT_EQ(split.thread_begin, std::vector<int32_t>(5, 0));
}

}  // namespace
}  // namespace tandem::cpu_attention_worker
