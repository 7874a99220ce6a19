#include "cpu_attention_worker/kv_store/pool_toucher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <condition_variable>
#include <mutex>
#include <vector>

#include "common/shm/region.h"
#include "common/shm/residency.h"

namespace tandem::cpu_attention_worker {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

class Touched {
 public:
  PoolToucher::Callbacks Callbacks() {
    return {[this](uint32_t count) {
              const std::lock_guard lock(mutex_);
              counts_.push_back(count);
              changed_.notify_all();
            },
            [this](const std::string& message) {
              const std::lock_guard lock(mutex_);
              warnings_.push_back(message);
            }};
  }
  std::vector<uint32_t> WaitFor(uint32_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60),
                      [&] { return !counts_.empty() && counts_.back() >= count; });
    return counts_;
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint32_t> counts_;
  std::vector<std::string> warnings_;
};

uint64_t ResidentPages(const shm::Region& region) {
  std::vector<unsigned char> resident(region.size() / 4096);
  EXPECT_EQ(mincore(region.data(), region.size(), resident.data()), 0);
  uint64_t count = 0;
  for (const unsigned char page : resident) count += page & 1;
  return count;
}

TEST(PoolToucher, TouchesExtentByExtentAndChangesNothing) {
  const shm::Region region = shm::Region::Create("tandem-test", 5 * kHugePage).value();
  region.data()[12345] = std::byte{42};
  const std::unique_ptr<topology::Topology> topology = topology::Topology::Load().value();
  const topology::Placement placement = ChoosePlacement(topology->snapshot(), {}).value();
  Touched touched;
  PoolToucher toucher({region.data(), region.size(), 2 * kHugePage, topology.get(),
                       placement.numa_node, placement.cpus},
                      touched.Callbacks());
  toucher.Start();
  EXPECT_THAT(touched.WaitFor(3), testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(ResidentPages(region), region.size() / 4096);
  EXPECT_EQ(region.data()[12345], std::byte{42});
  const std::string kind = PageKind(region.data(), region.size());
  EXPECT_TRUE(kind == "4KiB" || kind.ends_with("2MiB")) << kind;
}

// Forbids what a container's profile forbids, and says that every second huge page lies elsewhere.
class StubbornTopology : public topology::Topology {
 public:
  explicit StubbornTopology(const std::byte* pool) : pool_(pool) {}
  const topology::Snapshot& snapshot() const override { return snapshot_; }
  absl::Status BindMemory(void*, size_t, int) const override {
    return absl::PermissionDeniedError("no mbind here");
  }
  std::optional<bool> PageIsOnNode(const void* data, int) const override {
    return (static_cast<const std::byte*>(data) - pool_) / kHugePage % 2 == 0;
  }

 private:
  const std::byte* const pool_;
  const topology::Snapshot snapshot_;
};

TEST(PoolToucher, SaysWhereThePagesWent) {
  const shm::Region region = shm::Region::Create("tandem-test", 5 * kHugePage).value();
  const StubbornTopology topology(region.data());
  Touched touched;
  PoolToucher toucher({region.data(), region.size(), 2 * kHugePage, &topology, 0, {}},
                      touched.Callbacks());
  toucher.Start();
  touched.WaitFor(3);
  EXPECT_FALSE(toucher.memory_bound());
  EXPECT_EQ(toucher.misplaced_bytes(), 2 * kHugePage);
  EXPECT_THAT(touched.warnings(), testing::Contains(testing::HasSubstr("no mbind here")).Times(1));
}

TEST(PoolToucher, PagesAreHugeWhereTheKernelCanMakeThem) {
  const shm::Region region = shm::Region::Create("tandem-test", 6 * kHugePage).value();
  ASSERT_TRUE(shm::PopulateSparsely(region.data(), kHugePage).ok());
  if (!shm::CollapseToHugePages(region.data(), kHugePage).ok()) {
    GTEST_SKIP() << "this kernel does not collapse shared memory";
  }
  Touched touched;
  PoolToucher toucher({region.data(), region.size(), 2 * kHugePage, nullptr, 0, {}},
                      touched.Callbacks());
  toucher.Start();
  touched.WaitFor(3);
  EXPECT_EQ(PageKind(region.data(), region.size()), "2MiB");
  EXPECT_THAT(touched.warnings(), testing::IsEmpty());
}

TEST(PoolToucher, StopsEarly) {
  const shm::Region region = shm::Region::Create("tandem-test", 512 * kHugePage).value();
  Touched touched;
  {
    PoolToucher toucher({region.data(), region.size(), kHugePage, nullptr, 0, {}},
                        touched.Callbacks());
    toucher.Start();
    touched.WaitFor(1);
  }
  EXPECT_LT(touched.WaitFor(1).back(), 512u);
}

}  // namespace
}  // namespace tandem::cpu_attention_worker
