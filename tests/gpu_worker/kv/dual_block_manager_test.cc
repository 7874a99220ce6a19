#include "gpu_worker/kv/dual_block_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tandem::gpu_worker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class DualBlockManagerTest : public testing::Test {
 protected:
  DualBlockManagerTest() : manager_({8, 16, 2, 128}) { manager_.SetCpuBlocksReady(2); }
  ~DualBlockManagerTest() override {
    const absl::Status status = CheckKvInvariants(manager_.Snapshot());
    EXPECT_TRUE(status.ok()) << status;
  }
  int32_t free_gpu() const { return manager_.pool(Tier::kGpu).free_blocks(); }
  int32_t free_cpu() const { return manager_.pool(Tier::kCpu).free_blocks(); }
  void Admit(uint64_t sequence, Tier tier, int64_t tokens) {
    manager_.BeginStep();
    ASSERT_TRUE(manager_.Reserve(sequence, tier, tokens));
    manager_.CommitStep();
  }

  DualBlockManager manager_;
};

TEST_F(DualBlockManagerTest, CommitKeepsWhatWasReserved) {
  Admit(1, Tier::kGpu, 33);
  EXPECT_EQ(manager_.tier_of(1), Tier::kGpu);
  EXPECT_EQ(manager_.blocks_of(1), 3);
  manager_.BeginStep();
  EXPECT_TRUE(manager_.Reserve(1, Tier::kGpu, 48));
  EXPECT_EQ(manager_.blocks_of(1), 3) << "still fits";
  EXPECT_TRUE(manager_.Reserve(1, Tier::kGpu, 49));
  manager_.CommitStep();
  EXPECT_EQ(manager_.blocks_of(1), 4);
  EXPECT_EQ(free_gpu(), 4);
}

TEST_F(DualBlockManagerTest, RollbackGivesBackGrowthAndAdmission) {
  Admit(1, Tier::kGpu, 16);
  manager_.BeginStep();
  ASSERT_TRUE(manager_.Reserve(1, Tier::kGpu, 40));
  ASSERT_TRUE(manager_.Reserve(2, Tier::kCpu, 200));
  manager_.RollbackStep();
  EXPECT_EQ(manager_.blocks_of(1), 1);
  EXPECT_EQ(manager_.tier_of(2), Tier::kNone);
  EXPECT_EQ(free_gpu(), 7);
  EXPECT_EQ(free_cpu(), 2);
}

TEST_F(DualBlockManagerTest, MovesKeepTheOldBlocksUntilCommit) {
  Admit(1, Tier::kGpu, 100);
  manager_.BeginStep();
  ASSERT_TRUE(manager_.ReserveMove(1, Tier::kCpu, 100));
  EXPECT_EQ(manager_.table(1).size(), 7u);
  EXPECT_EQ(manager_.destination_table(1).size(), 1u);
  EXPECT_EQ(free_gpu(), 1) << "an aborted step must find them unharmed";
  EXPECT_TRUE(manager_.Reserve(1, Tier::kCpu, 129)) << "the destination may grow in the same step";
  EXPECT_EQ(manager_.destination_table(1).size(), 2u);
  manager_.CommitStep();
  EXPECT_EQ(manager_.tier_of(1), Tier::kCpu);
  EXPECT_EQ(manager_.blocks_of(1), 2);
  EXPECT_THAT(manager_.destination_table(1), IsEmpty());
  EXPECT_EQ(free_gpu(), 8);
}

TEST_F(DualBlockManagerTest, RollbackOfAMoveLeavesTheSourceUntouched) {
  Admit(1, Tier::kCpu, 100);
  const std::vector<int32_t> before(manager_.table(1).begin(), manager_.table(1).end());
  manager_.BeginStep();
  ASSERT_TRUE(manager_.ReserveMove(1, Tier::kGpu, 101));
  manager_.RollbackStep();
  EXPECT_EQ(manager_.tier_of(1), Tier::kCpu);
  EXPECT_THAT(std::vector<int32_t>(manager_.table(1).begin(), manager_.table(1).end()), before);
  EXPECT_EQ(free_gpu(), 8);
}

TEST_F(DualBlockManagerTest, RefusesWithoutChange) {
  Admit(1, Tier::kGpu, 100);
  manager_.BeginStep();
  EXPECT_FALSE(manager_.Reserve(2, Tier::kGpu, 17));
  EXPECT_EQ(manager_.tier_of(2), Tier::kNone);
  EXPECT_FALSE(manager_.Reserve(1, Tier::kGpu, 129));
  EXPECT_FALSE(manager_.ReserveMove(1, Tier::kCpu, 257));
  EXPECT_EQ(manager_.blocks_of(1), 7);
  manager_.CommitStep();
}

TEST_F(DualBlockManagerTest, ReleaseFreesEverything) {
  Admit(1, Tier::kGpu, 100);
  Admit(2, Tier::kCpu, 100);
  manager_.Release(1);
  manager_.Release(2);
  manager_.Release(3);
  EXPECT_EQ(free_gpu(), 8);
  EXPECT_EQ(free_cpu(), 2);
}

TEST_F(DualBlockManagerTest, ReleaseDuringAStepOfOthers) {
  Admit(1, Tier::kGpu, 16);
  Admit(2, Tier::kGpu, 16);
  manager_.BeginStep();
  ASSERT_TRUE(manager_.Reserve(1, Tier::kGpu, 32));
  manager_.Release(2);
  manager_.RollbackStep();
  EXPECT_EQ(manager_.blocks_of(1), 1);
  EXPECT_EQ(free_gpu(), 7);
}

}  // namespace
}  // namespace tandem::gpu_worker
