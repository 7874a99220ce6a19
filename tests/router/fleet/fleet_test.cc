#include "router/fleet/fleet.h"

#include <gtest/gtest.h>

#include <thread>

#include "router/policy/round_robin.h"

namespace tandem::router {
namespace {

ModelInfo Model(const std::string& name, const std::string& sha = "a") {
  ModelInfo model;
  model.served_names = {name};
  model.tokenizer_sha256 = sha;
  model.max_model_len = 100;
  model.vocab_size = 10;
  return model;
}

class FleetTest : public testing::Test {
 protected:
  Fleet fleet_{{"a:1", "b:2"}, MakeRoundRobin(), 2};
};

TEST_F(FleetTest, NothingIsReadyAtFirst) {
  EXPECT_FALSE(fleet_.AnyReady());
  EXPECT_TRUE(fleet_.Models().empty());
  EXPECT_FALSE(fleet_.Acquire({0, {}}).held());
}

TEST_F(FleetTest, LeasesCount) {
  fleet_.SetReady(1, Model("m"));
  WorkerLease lease = fleet_.Acquire({fleet_.FindModel("m")->id, {}});
  ASSERT_TRUE(lease.held());
  EXPECT_EQ(lease.worker(), 1);
  EXPECT_EQ(fleet_.Workers()[1].inflight, 1);
  EXPECT_EQ(fleet_.Workers()[1].waiting, 1);
  lease.OnFirstToken();
  lease.OnFirstToken();
  EXPECT_EQ(fleet_.Workers()[1].waiting, 0);
  WorkerLease moved = std::move(lease);
  lease.Release();
  EXPECT_EQ(fleet_.Workers()[1].inflight, 1);
  moved.Release();
  EXPECT_EQ(fleet_.Workers()[1].inflight, 0);
  EXPECT_EQ(fleet_.Workers()[1].waiting, 0);
}

TEST_F(FleetTest, EqualWorkersServeOneModel) {
  std::vector<std::string> heard;
  fleet_.set_on_model([&](const ModelInfo& model) { heard.push_back(model.served_names[0]); });
  fleet_.SetReady(0, Model("m"));
  fleet_.SetReady(1, Model("m"));
  EXPECT_EQ(fleet_.Models().size(), 1u);
  EXPECT_EQ(heard, (std::vector<std::string>{"m", "m"}));
  EXPECT_NE(fleet_.FindModel(""), nullptr);
  fleet_.SetReady(1, Model("other", "b"));
  EXPECT_EQ(fleet_.Models().size(), 2u);
  EXPECT_EQ(fleet_.FindModel(""), nullptr);
  EXPECT_EQ(fleet_.FindModel("none"), nullptr);
  EXPECT_NE(fleet_.FindModel("other")->id, fleet_.FindModel("m")->id);
}

TEST_F(FleetTest, WorkersThatBecomeReadyAtOnceServeOneModel) {
  for (int round = 0; round < 200; ++round) {
    Fleet fleet({"a:1", "b:2"}, MakeRoundRobin(), 2);
    std::thread other([&] { fleet.SetReady(1, Model("m")); });
    fleet.SetReady(0, Model("m"));
    other.join();
    ASSERT_EQ(fleet.Models().size(), 1u);
  }
}

TEST_F(FleetTest, AModelIsKnownWhileItsWorkerIsAway) {
  fleet_.SetReady(0, Model("m"));
  const int id = fleet_.FindModel("m")->id;
  fleet_.SetLost(0);
  EXPECT_NE(fleet_.FindModel("m"), nullptr);
  EXPECT_FALSE(fleet_.AnyReady());
  fleet_.SetReady(0, Model("m"));
  EXPECT_EQ(fleet_.FindModel("m")->id, id);
}

TEST_F(FleetTest, ALostWorkerIsSuspectUntilItIsReadyAgain) {
  std::vector<int> suspects;
  fleet_.set_on_suspect([&](int worker) { suspects.push_back(worker); });
  fleet_.SetReady(0, Model("m"));
  const PickRequest pick{fleet_.FindModel("m")->id, {}};
  WorkerLease lost = fleet_.Acquire(pick);
  WorkerLease also_lost = fleet_.Acquire(pick);
  lost.ReportLost();
  also_lost.ReportLost();
  EXPECT_EQ(suspects, std::vector<int>{0});
  EXPECT_FALSE(fleet_.AnyReady());
  fleet_.SetReady(0, Model("m"));
  also_lost.ReportLost();  // of the process before
  EXPECT_TRUE(fleet_.AnyReady());
}

TEST_F(FleetTest, WaitersWakeOnceAndAreBounded) {
  fleet_.SetReady(0, Model("m"));
  const int id = fleet_.FindModel("m")->id;
  int woken = 0;
  const auto wake = [&](bool ready) {
    EXPECT_TRUE(ready);
    ++woken;
  };
  EXPECT_TRUE(fleet_.WaitForReady(id, false, wake).has_value());
  EXPECT_EQ(woken, 1);  // at once
  fleet_.SetLost(0);
  const auto first = fleet_.WaitForReady(id, false, wake);
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(fleet_.WaitForReady(id, false, wake).has_value());
  EXPECT_FALSE(fleet_.WaitForReady(id, false, wake).has_value());
  fleet_.CancelWait(*first);
  EXPECT_TRUE(fleet_.WaitForReady(id + 1, false, wake).has_value());
  EXPECT_EQ(woken, 1);
  fleet_.SetReady(0, Model("m"));
  EXPECT_EQ(woken, 2);
  fleet_.SetReady(0, Model("m"));
  EXPECT_EQ(woken, 2);
}

TEST_F(FleetTest, AWaitEndsWhenAllRefuse) {
  fleet_.SetReady(0, Model("m"));
  fleet_.SetReady(1, Model("m"));
  const int id = fleet_.FindModel("m")->id;
  fleet_.SetLost(0);
  fleet_.SetRefusing(1);
  std::vector<bool> woken;
  const auto wake = [&](bool ready) { woken.push_back(ready); };
  fleet_.WaitForReady(id, true, wake);
  fleet_.WaitForReady(id, false, wake);
  EXPECT_TRUE(woken.empty());  // worker 0 may come back
  fleet_.SetRefusing(0);
  EXPECT_EQ(woken, std::vector<bool>{false});
  fleet_.WaitForReady(id, true, wake);
  EXPECT_EQ(woken, (std::vector<bool>{false, false}));
  fleet_.SetReady(0, Model("m"));
  EXPECT_EQ(woken, (std::vector<bool>{false, false, true}));
}

}  // namespace
}  // namespace tandem::router
