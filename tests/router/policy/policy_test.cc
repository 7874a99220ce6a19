#include <gtest/gtest.h>

#include "router/policy/round_robin.h"

namespace tandem::router {
namespace {

std::vector<WorkerView> Workers(int count) {
  std::vector<WorkerView> workers(count);
  for (int i = 0; i < count; ++i) {
    workers[i].index = i;
    workers[i].ready = true;
    workers[i].model_id = 0;
  }
  return workers;
}

TEST(FilterTest, KeepsReadyWorkersOfTheModelThatAreNotExcluded) {
  std::vector<WorkerView> workers = Workers(5);
  workers[0].ready = false;
  workers[1].model_id = 1;
  const std::vector<int> excluded = {3};
  const std::vector<WorkerView> left = Filter(workers, {0, excluded});
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].index, 2);
  EXPECT_EQ(left[1].index, 4);
}

TEST(RoundRobinTest, TakesEachInTurn) {
  const auto policy = MakeRoundRobin();
  const std::vector<WorkerView> workers = Workers(3);
  std::vector<int> picks;
  for (int i = 0; i < 6; ++i) {
    picks.push_back(policy->Pick(workers));
  }
  EXPECT_EQ(picks, (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(RoundRobinTest, AWorkerThatLeavesDoesNotChangeTheTurnOfTheOthers) {
  const auto policy = MakeRoundRobin();
  std::vector<WorkerView> workers = Workers(3);
  EXPECT_EQ(policy->Pick(workers), 0);
  workers.erase(workers.begin() + 1);
  EXPECT_EQ(policy->Pick(workers), 2);
  EXPECT_EQ(policy->Pick(workers), 0);
  EXPECT_EQ(policy->Pick(Workers(3)), 1);
}

}  // namespace
}  // namespace tandem::router
