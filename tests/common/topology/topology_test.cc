#include "common/topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <thread>
#include <vector>

namespace tandem::topology {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Snapshot Synthetic(const std::string& description) {
  return Topology::LoadSynthetic(description).value()->snapshot();
}

TEST(Topology, SyntheticMachinesBecomeSnapshots) {
  const Snapshot snapshot = Synthetic("numa:2 core:4 pu:2");
  ASSERT_EQ(snapshot.nodes.size(), 2u);
  EXPECT_EQ(snapshot.nodes[1].index, 1);
  ASSERT_EQ(snapshot.nodes[1].cores.size(), 4u);
  EXPECT_THAT(snapshot.nodes[1].cores[0].cpus, ElementsAre(8, 9));
  EXPECT_FALSE(Topology::LoadSynthetic("nonsense:x").ok());
  const auto two_caches = Topology::LoadSynthetic("numa:2 l3:1(size=8388608) core:2 pu:1");
  ASSERT_TRUE(two_caches.ok()) << two_caches.status();
  EXPECT_EQ((*two_caches)->snapshot().last_level_cache_bytes, 2 * 8388608);
}

TEST(Placement, OneThreadPerCoreByDefault) {
  const Placement placement = ChoosePlacement(Synthetic("numa:2 core:4 pu:2"), {}).value();
  EXPECT_EQ(placement.numa_node, 0);
  EXPECT_THAT(placement.cpus, ElementsAre(0, 2, 4, 6));
}

TEST(Placement, SecondThreadsOfCoresComeLast) {
  const Snapshot snapshot = Synthetic("numa:2 core:3 pu:2");
  PlacementRequest request;
  request.numa_node = 1;
  request.threads = 5;
  EXPECT_THAT(ChoosePlacement(snapshot, request).value().cpus, ElementsAre(6, 8, 10, 7, 9));
  request.threads = 2;
  EXPECT_THAT(ChoosePlacement(snapshot, request).value().cpus, ElementsAre(6, 8));
}

TEST(Placement, TheNodeWithMostAllowedCoresWins) {
  Snapshot snapshot = Synthetic("numa:3 core:4 pu:1");
  snapshot.nodes[0].cores.resize(1);  // as an affinity mask would leave it
  EXPECT_EQ(ChoosePlacement(snapshot, {}).value().numa_node, 1);
  snapshot.nodes[2].memory_bytes = snapshot.nodes[1].memory_bytes + 1;
  EXPECT_EQ(ChoosePlacement(snapshot, {}).value().numa_node, 2);
}

TEST(Placement, RefusalsNameTheFlagAndWhatIsAllowed) {
  const Snapshot snapshot = Synthetic("numa:2 core:2 pu:1");
  PlacementRequest request;
  request.numa_node = 7;
  EXPECT_THAT(std::string(ChoosePlacement(snapshot, request).status().message()),
              HasSubstr("--numa-node 7 has no CPU that this process may use; allowed: 0, 1"));
  request.numa_node = 1;
  request.threads = 3;
  EXPECT_THAT(std::string(ChoosePlacement(snapshot, request).status().message()),
              HasSubstr("--cpu-attention-threads 3; allowed on NUMA node 1: 1 to 2"));
  EXPECT_EQ(ChoosePlacement({}, {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(Topology, ThisMachineHonoursTheAffinityMaskAndThreadsPin) {
  std::thread pinned([] {
    const std::unique_ptr<Topology> all = Topology::Load().value();
    const Placement placement = ChoosePlacement(all->snapshot(), {}).value();
    const int cpu = placement.cpus.back();
    ASSERT_TRUE(PinThisThread(cpu).ok());
    EXPECT_EQ(sched_getcpu(), cpu);
    const std::unique_ptr<Topology> restricted = Topology::Load().value();
    ASSERT_EQ(restricted->snapshot().nodes.size(), 1u);
    ASSERT_EQ(restricted->snapshot().nodes[0].cores.size(), 1u);
    EXPECT_THAT(restricted->snapshot().nodes[0].cores[0].cpus, ElementsAre(cpu));
  });
  pinned.join();
  EXPECT_FALSE(PinThisThread(8000).ok());
}

}  // namespace
}  // namespace tandem::topology
