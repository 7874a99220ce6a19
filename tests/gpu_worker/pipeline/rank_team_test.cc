#include "gpu_worker/pipeline/rank_team.h"

#include <gtest/gtest.h>

#include <barrier>
#include <thread>

namespace tandem::gpu_worker {
namespace {

TEST(RankTeamTest, RanksRunAtTheSameTimeEachOnItsThread) {
  RankTeam team(3);
  std::vector<std::thread::id> threads(3);
  for (int round = 0; round < 20; ++round) {
    std::barrier together(3);  // nobody comes past it alone
    const absl::Status status = team.Run([&](int32_t rank) {
      together.arrive_and_wait();
      std::thread::id& mine = threads[static_cast<size_t>(rank)];
      EXPECT_TRUE(round == 0 || mine == std::this_thread::get_id());
      mine = std::this_thread::get_id();
      return absl::OkStatus();
    });
    EXPECT_TRUE(status.ok());
  }
  EXPECT_EQ(threads[0], std::this_thread::get_id());
  EXPECT_NE(threads[1], threads[2]);
}

TEST(RankTeamTest, AnErrorThatAnotherMayHaveCausedGivesWay) {
  RankTeam team(3);
  const auto run = [&](std::vector<absl::Status> results) {
    return team.Run([&](int32_t rank) { return results[static_cast<size_t>(rank)]; }).code();
  };
  const absl::Status lost = absl::UnavailableError("lost");
  const absl::Status broken = absl::InternalError("broken");
  EXPECT_EQ(run({{}, {}, {}}), absl::StatusCode::kOk);
  EXPECT_EQ(run({{}, lost, {}}), absl::StatusCode::kUnavailable);
  EXPECT_EQ(run({lost, {}, broken}), absl::StatusCode::kInternal);
  EXPECT_EQ(run({broken, lost, lost}), absl::StatusCode::kInternal);
  EXPECT_EQ(run({{}, {}, {}}), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace tandem::gpu_worker
