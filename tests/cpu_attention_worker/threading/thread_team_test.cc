#include "cpu_attention_worker/threading/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace tandem::cpu_attention_worker {
namespace {

TEST(ThreadTeam, EveryMemberRunsEachJobOnce) {
  for (int size : {1, 2, 5}) {
    for (const exchange::WaitPolicy& policy :
         {exchange::WaitPolicy::SharedCores(), exchange::WaitPolicy::OwnCores()}) {
      ThreadTeam team(std::vector<int>(static_cast<size_t>(size), -1));
      team.SetPolicy(policy);
      std::vector<int64_t> runs(static_cast<size_t>(size), 0);  // plain: Run orders the accesses
      for (int i = 0; i < 500; ++i) {
        team.Run([&runs](int member) { ++runs[static_cast<size_t>(member)]; });
      }
      EXPECT_EQ(runs, std::vector<int64_t>(static_cast<size_t>(size), 500));
    }
  }
}

TEST(ThreadTeam, MembersAreDifferentThreads) {
  ThreadTeam team({-1, -1, -1});
  std::vector<std::thread::id> ids(3);
  team.Run([&ids](int member) { ids[static_cast<size_t>(member)] = std::this_thread::get_id(); });
  EXPECT_EQ(std::set<std::thread::id>(ids.begin(), ids.end()).size(), 3u);
  EXPECT_EQ(ids[0], std::this_thread::get_id());
}

TEST(ThreadTeam, ACpuThatIsNotThereCostsOnlyThePin) {
  ThreadTeam team({-1, 4000});
  std::atomic<int> runs{0};
  team.Run([&runs](int) { ++runs; });
  EXPECT_EQ(runs.load(), 2);
}

TEST(ThreadTeam, StopsWithoutEverHavingRun) { ThreadTeam team({-1, -1, -1, -1}); }

}  // namespace
}  // namespace tandem::cpu_attention_worker
