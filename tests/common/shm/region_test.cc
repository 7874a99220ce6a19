#include "common/shm/region.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace tandem::shm {
namespace {

constexpr uint64_t kBytes = 3 << 20;

TEST(Region, IsAlignedSealedAndShared) {
  Region region = Region::Create("tandem-test", kBytes).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(region.data()) % (2 << 20), 0u);
  EXPECT_EQ(region.size(), kBytes);
  EXPECT_NE(ftruncate(region.fd(), 1), 0);
  Region other = Region::Map(dup(region.fd()), kBytes).value();
  region.data()[kBytes - 1] = std::byte{7};
  EXPECT_EQ(other.data()[kBytes - 1], std::byte{7});
  const Region moved = std::move(other);
  EXPECT_EQ(moved.data()[kBytes - 1], std::byte{7});
}

TEST(Region, RefusesWrongSizeAndUnsealedDescriptors) {
  const Region region = Region::Create("tandem-test", kBytes).value();
  EXPECT_EQ(Region::Map(dup(region.fd()), kBytes + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  const int unsealed = memfd_create("tandem-unsealed", MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(unsealed, kBytes), 0);
  EXPECT_EQ(Region::Map(unsealed, kBytes).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Region::Map(open("/dev/null", O_RDWR), kBytes).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(MappedFile::Open("/nonexistent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::Open("/dev").status().code(), absl::StatusCode::kInvalidArgument);
  // A pipe that nobody writes to: it must not be waited for.
  const std::string pipe = testing::TempDir() + "tandem_pipe_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(pipe).status().code(), absl::StatusCode::kInvalidArgument);
  unlink(pipe.c_str());
}

}  // namespace
}  // namespace tandem::shm
