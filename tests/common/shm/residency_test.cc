#include "common/shm/residency.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "common/shm/region.h"

namespace tandem::shm {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

uint64_t ResidentPages(const Region& region) {
  std::vector<unsigned char> resident(region.size() / 4096);
  EXPECT_EQ(mincore(region.data(), region.size(), resident.data()), 0);
  uint64_t count = 0;
  for (const unsigned char page : resident) {
    count += page & 1;
  }
  return count;
}

bool CollapseWorksHere() {
  const Region region = Region::Create("tandem-probe", kHugePage).value();
  return PopulateSparsely(region.data(), region.size()).ok() &&
         CollapseToHugePages(region.data(), region.size()).ok();
}

TEST(Residency, PopulatingChangesNothingAndLeavesNoHole) {
  const Region region = Region::Create("tandem-test", 3 * kHugePage).value();
  region.data()[kHugePage + 5] = std::byte{9};
  ASSERT_TRUE(PopulatePages(region.data(), region.size()).ok());
  EXPECT_EQ(ResidentPages(region), region.size() / 4096);
  EXPECT_EQ(region.data()[kHugePage + 5], std::byte{9});
}

TEST(Residency, SparseIsOnePagePerHugePage) {
  const Region region = Region::Create("tandem-test", 4 * kHugePage).value();
  if (region.reserved_huge_pages()) {
    GTEST_SKIP() << "every page is a huge one: huge pages are reserved on this machine";
  }
  // Whole huge pages only: of the range's two ends none.
  ASSERT_TRUE(PopulateSparsely(region.data() + 4096, region.size() - 8192).ok());
  EXPECT_EQ(ResidentPages(region), 2u);
}

TEST(Residency, CollapsingKeepsContentsAndIsSeenInSmaps) {
  if (!CollapseWorksHere()) {
    GTEST_SKIP() << "this kernel does not collapse shared memory";
  }
  const Region region = Region::Create("tandem-test", 4 * kHugePage).value();
  region.data()[3 * kHugePage + 77] = std::byte{42};
  ASSERT_TRUE(PopulateSparsely(region.data(), region.size()).ok());
  ASSERT_TRUE(CollapseToHugePages(region.data(), region.size()).ok());
  EXPECT_EQ(HugePageBytes(region.data(), region.size()), region.size());
  EXPECT_EQ(ResidentPages(region), region.size() / 4096);
  EXPECT_EQ(region.data()[3 * kHugePage + 77], std::byte{42});
  EXPECT_EQ(region.data()[3 * kHugePage + 78], std::byte{0});
  // A process that maps it later gets the same pages.
  const Region other = Region::Map(dup(region.fd()), region.size()).value();
  ASSERT_TRUE(PopulatePages(other.data(), other.size()).ok());
  EXPECT_EQ(HugePageBytes(other.data(), other.size()), other.size());
  EXPECT_EQ(other.data()[3 * kHugePage + 77], std::byte{42});
}

TEST(Residency, NormalPagesAreNotTakenForHugeOnes) {
  const Region region = Region::Create("tandem-test", 3 * kHugePage + 4096).value();
  ASSERT_TRUE(PopulatePages(region.data(), region.size()).ok());
  std::ifstream setting("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  std::string text;
  std::getline(setting, text);
  if (text.find("[never]") == std::string::npos) {
    GTEST_SKIP() << "shmem_enabled is not never: pages may be huge by themselves";
  }
  EXPECT_EQ(HugePageBytes(region.data(), region.size()), 0u);
}

TEST(Residency, LockingSaysWhatTheLimitIs) {
  const Region region = Region::Create("tandem-test", 2 * kHugePage).value();
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &old), 0);
  const rlimit none{0, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0);
  const absl::Status status = LockPages(region.data(), region.size());
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &old), 0);
  if (status.ok()) {
    GTEST_SKIP() << "this process may lock without a limit (CAP_IPC_LOCK)";
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("RLIMIT_MEMLOCK is 0"), absl::string_view::npos) << status;
}

TEST(Residency, PartsOfAMappingThatTheKernelKeepsApartCountTogether) {
  if (!CollapseWorksHere()) {
    GTEST_SKIP() << "this kernel does not collapse shared memory";
  }
  const Region region = Region::Create("tandem-test", 4 * kHugePage).value();
  ASSERT_TRUE(PopulateSparsely(region.data(), region.size()).ok());
  ASSERT_TRUE(CollapseToHugePages(region.data(), region.size()).ok());
  ASSERT_EQ(madvise(region.data(), 2 * kHugePage, MADV_DONTFORK), 0);  // as a lock would
  EXPECT_EQ(HugePageBytes(region.data(), region.size()), region.size());
  EXPECT_EQ(HugePageBytes(region.data(), kHugePage), 2 * kHugePage);
}

TEST(Residency, ReservedHugePagesAreTakenWhereTheyAreFree) {
  uint64_t free = 0;
  std::ifstream("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") >> free;
  if (free < 2) {
    GTEST_SKIP() << "no 2 MiB pages are reserved (vm.nr_hugepages)";
  }
  const Region region = Region::Create("tandem-test", 2 * kHugePage).value();
  ASSERT_TRUE(region.reserved_huge_pages());
  ASSERT_TRUE(PopulatePages(region.data(), region.size()).ok());
  EXPECT_EQ(HugePageBytes(region.data(), region.size()), region.size());
  const Region other = Region::Map(dup(region.fd()), region.size()).value();
  EXPECT_TRUE(other.reserved_huge_pages());
  region.data()[kHugePage] = std::byte{3};
  EXPECT_EQ(other.data()[kHugePage], std::byte{3});
  // More than there is: normal pages, not an error.
  EXPECT_FALSE(Region::Create("tandem-test", (free + 1) * kHugePage).value().reserved_huge_pages());
}

}  // namespace
}  // namespace tandem::shm
