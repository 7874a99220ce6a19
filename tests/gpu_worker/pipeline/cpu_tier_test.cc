#include "gpu_worker/pipeline/cpu_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/common/exchange/test_geometry.h"
#include "tests/fakes/fake_cpu_attention_worker.h"

namespace tandem::gpu_worker {
namespace {

using fakes::FakeCpuAttentionWorker;

constexpr int64_t kTimeoutUs = 20'000'000;
constexpr int32_t kLayers = 2;

exchange::Geometry ThreeHeads() {
  exchange::Geometry geometry = exchange::SmallGeometry();
  geometry.num_layers = kLayers;
  geometry.num_q_heads = 6;
  geometry.num_kv_heads = 3;
  return geometry;
}

// Shards of 2, 3 and 3 of 8 heads.
TEST(HeadWindowTest, DevicesAndWorkersMeetWhereTheirHeadsDo) {
  exchange::Geometry geometry = ThreeHeads();
  geometry.num_q_heads = 16;
  geometry.num_kv_heads = 8;
  const auto tier = CpuTier::Create(geometry, 3, 4).value();
  const uint32_t posters[] = {1, 2, 2};
  for (size_t shard = 0; shard < 3; ++shard) {
    const CpuShard& each = tier->shards()[shard];
    EXPECT_EQ(each.exchange->header().geometry.num_posters, posters[shard]);
    std::vector<int> heads(static_cast<size_t>(each.pool.num_kv_heads));
    std::vector<int> rings(static_cast<size_t>(posters[shard]));
    for (int32_t rank = 0; rank < 4; ++rank) {
      const HeadWindow window = WindowOf(each, rank, 2);
      for (int32_t i = 0; i < window.num_heads; ++i) {
        EXPECT_EQ(rank * 2 + window.device_head + i, each.first_kv_head + window.shard_head + i);
        ++heads.at(static_cast<size_t>(window.shard_head + i));
      }
      if (window.num_heads > 0) {
        EXPECT_LE(window.device_head + window.num_heads, 2);
        ++rings.at(static_cast<size_t>(window.poster));
      }
    }
    EXPECT_THAT(heads, testing::Each(1)) << shard;
    EXPECT_THAT(rings, testing::Each(1)) << shard;
  }
}

class CpuTierTest : public testing::Test {
 protected:
  CpuTierTest() : tier_(CpuTier::Create(ThreeHeads(), 2).value()) {
    workers_.resize(2);
    Attach(0);
    Attach(1);
  }

  void Attach(size_t shard) {
    workers_[shard] =
        std::make_unique<FakeCpuAttentionWorker>(tier_->shards()[shard].exchange.get());
    tier_->shards()[shard].exchange->ResetAfterDeath();
    tier_->SetUp(shard, true);
  }
  void Die(size_t shard) {
    workers_[shard].reset();
    tier_->SetUp(shard, false);
  }
  absl::Status Begin(uint64_t epoch) {
    return tier_->BeginStep(epoch, rows_, {}, 1.0f, kTimeoutUs);
  }
  // Every layer on every shard.
  void Layers() {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (const CpuShard& shard : tier_->shards()) {
        shard.exchange->Post(0, layer);
      }
      for (const CpuShard& shard : tier_->shards()) {
        ASSERT_EQ(shard.exchange->WaitDone(0, layer, kTimeoutUs), exchange::WaitResult::kDone);
      }
    }
  }

  const std::vector<int32_t> table_ = {1};
  const std::vector<exchange::SlotRow> rows_ = {{1, table_}};
  std::unique_ptr<CpuTier> tier_;
  std::vector<std::unique_ptr<FakeCpuAttentionWorker>> workers_;
};

TEST_F(CpuTierTest, HeadsAreSharedOut) {
  const std::span<const CpuShard> shards = tier_->shards();
  ASSERT_EQ(shards.size(), 2u);
  EXPECT_EQ(shards[0].first_kv_head, 0);
  EXPECT_EQ(shards[0].pool.num_kv_heads, 1);
  EXPECT_EQ(shards[1].first_kv_head, 1);
  EXPECT_EQ(shards[1].pool.num_kv_heads, 2);
  EXPECT_EQ(shards[0].exchange->header().geometry.num_q_heads, 2u);
  EXPECT_EQ(shards[1].exchange->header().geometry.num_q_heads, 4u);
  // No byte of the pool is there twice.
  EXPECT_EQ(shards[0].exchange->header().pool_bytes + shards[1].exchange->header().pool_bytes,
            ThreeHeads().num_blocks * exchange::PoolGeometryOf(ThreeHeads()).block_bytes());
}

TEST_F(CpuTierTest, MoreWorkersThanHeadsAreRefused) {
  for (const int32_t shards : {0, 4}) {
    const absl::Status status = CpuTier::Create(ThreeHeads(), shards).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("allowed: 1 to 3"));
  }
}

TEST_F(CpuTierTest, EveryWorkerTakesPartInEachStep) {
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    ASSERT_TRUE(Begin(epoch).ok());
    Layers();
    tier_->EndStep();
    EXPECT_TRUE(tier_->LeaveStep(kTimeoutUs).ok());
  }
  // Each is counted after it was answered: the newest may not be yet.
  EXPECT_GE(workers_[0]->layers(), 9u);
  EXPECT_GE(workers_[1]->layers(), 9u);
}

TEST_F(CpuTierTest, ADeathLeavesTheOthersInAStepThatTheyAreCalledOutOf) {
  Die(1);
  EXPECT_FALSE(tier_->all_up());
  EXPECT_EQ(Begin(1).code(), absl::StatusCode::kUnavailable);
  // Worker 0 has taken the step; it must not be able to write any more.
  ASSERT_TRUE(tier_->LeaveStep(kTimeoutUs).ok());
  Attach(1);
  EXPECT_TRUE(tier_->all_up());
  ASSERT_TRUE(Begin(2).ok());
  Layers();
}

TEST_F(CpuTierTest, AWorkerThatStaysInAStepIsWaitedForAndTold) {
  ASSERT_TRUE(Begin(1).ok());
  workers_[0].reset();  // stops answering, and nobody has said that it is dead
  EXPECT_EQ(tier_->LeaveStep(1'000).code(), absl::StatusCode::kDeadlineExceeded);
  tier_->SetUp(0, false);
  EXPECT_TRUE(tier_->LeaveStep(1'000).ok());
}

TEST_F(CpuTierTest, ADeathFreesWhoeverWaits) {
  ASSERT_TRUE(Begin(1).ok());
  workers_[1].reset();
  tier_->SetUp(1, false);
  EXPECT_EQ(tier_->shards()[1].exchange->WaitDone(0, 0, kTimeoutUs),
            exchange::WaitResult::kReleased);
}

}  // namespace
}  // namespace tandem::gpu_worker
