#include "common/shm/region.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::shm {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
// The size in the flag: its logarithm, shifted by 26.
constexpr unsigned kReservedHugePages = MFD_HUGETLB | (21u << 26);
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

absl::Status Errno(const std::string& what) { return absl::ErrnoToStatus(errno, what); }

// Maps `fd` shared at an address that is a multiple of 2 MiB, so that huge pages can back it.
absl::StatusOr<std::byte*> MapAligned(int fd, uint64_t bytes) {
  const uint64_t reserved = bytes + kHugePage;
  void* base =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Errno(absl::StrCat("reserving ", reserved, " bytes of address space"));
  }
  const uint64_t start = reinterpret_cast<uint64_t>(base);
  const uint64_t aligned = (start + kHugePage - 1) / kHugePage * kHugePage;
  void* target = reinterpret_cast<void*>(aligned);
  if (mmap(target, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const absl::Status status = Errno(absl::StrCat("mapping ", bytes, " bytes of shared memory"));
    munmap(base, reserved);
    return status;
  }
  if (aligned > start) {
    munmap(base, aligned - start);
  }
  const uint64_t page_end = (aligned + bytes + 4095) / 4096 * 4096;
  if (page_end < start + reserved) {
    munmap(reinterpret_cast<void*>(page_end), start + reserved - page_end);
  }
  return static_cast<std::byte*>(target);
}

// Of 2 MiB, that the administrator set aside and nobody has taken; 0 where there are none.
uint64_t FreeReservedHugePages() {
  const auto read = [](const char* name) {
    uint64_t count = 0;
    std::ifstream(absl::StrCat("/sys/kernel/mm/hugepages/hugepages-2048kB/", name)) >> count;
    return count;
  };
  const uint64_t free = read("free_hugepages");
  const uint64_t promised = read("resv_hugepages");
  return free > promised ? free - promised : 0;
}

}  // namespace

absl::StatusOr<Region> Region::CreateOn(const std::string& name, uint64_t bytes, unsigned flags) {
  Region region;
  region.fd_ = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  if (region.fd_ < 0) {
    return Errno(absl::StrCat("memfd_create ", name));
  }
  if (ftruncate(region.fd_, static_cast<off_t>(bytes)) != 0) {
    return Errno(absl::StrCat("sizing the shared region to ", bytes, " bytes"));
  }
  if (fcntl(region.fd_, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) {
    return Errno("sealing the shared region");
  }
  if (absl::Status status = region.MapWhole(bytes); !status.ok()) {
    return status;
  }
  return region;
}

absl::StatusOr<Region> Region::Create(const std::string& name, uint64_t bytes) {
  if (bytes > 0 && bytes % kHugePage == 0 && FreeReservedHugePages() >= bytes / kHugePage) {
    // Mapping takes the pages out of the reserve; somebody else may have been faster.
    absl::StatusOr<Region> region = CreateOn(name, bytes, kReservedHugePages);
    if (region.ok()) {
      return region;
    }
  }
  return CreateOn(name, bytes, 0);
}

absl::Status Region::MapWhole(uint64_t bytes) {
  struct statfs file_system {};
  if (fstatfs(fd_, &file_system) != 0) {
    return Errno("fstatfs of the shared region");
  }
  absl::StatusOr<std::byte*> data = MapAligned(fd_, bytes);
  if (!data.ok()) {
    return data.status();
  }
  data_ = *data;
  bytes_ = bytes;
  reserved_huge_pages_ = file_system.f_type == HUGETLBFS_MAGIC;
  return absl::OkStatus();
}

absl::StatusOr<Region> Region::Map(int fd, uint64_t expected_bytes) {
  Region region;
  region.fd_ = fd;
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return absl::InvalidArgumentError("the received descriptor is not a memfd sealed in size");
  }
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    return Errno("fstat of the shared region");
  }
  if (static_cast<uint64_t>(info.st_size) != expected_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shared region has ", info.st_size, " bytes instead of ", expected_bytes));
  }
  if (absl::Status status = region.MapWhole(expected_bytes); !status.ok()) {
    return status;
  }
  return region;
}

Region::Region(Region&& other) noexcept { *this = std::move(other); }

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  std::swap(reserved_huge_pages_, other.reserved_huge_pages_);
  return *this;
}

Region::~Region() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
  if (fd_ >= 0) {
    close(fd_);
  }
}

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  // A pipe without a writer would block here; for a regular file the flag changes nothing.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Errno(path);
  }
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= 0) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file with contents"));
  }
  MappedFile file;
  file.bytes_ = static_cast<uint64_t>(info.st_size);
  void* data = mmap(nullptr, file.bytes_, PROT_READ, MAP_PRIVATE, fd, 0);
  const absl::Status mapped =
      data == MAP_FAILED ? Errno(absl::StrCat("mapping ", path)) : absl::OkStatus();
  close(fd);
  if (!mapped.ok()) {
    return mapped;
  }
  file.data_ = static_cast<const std::byte*>(data);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<std::byte*>(data_), bytes_);
  }
}

absl::StatusOr<AddressSpace> AddressSpace::Reserve(uint64_t bytes) {
  AddressSpace space;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return Errno(absl::StrCat("reserving ", bytes, " bytes of address space"));
  }
  space.data_ = static_cast<std::byte*>(data);
  space.bytes_ = bytes;
  return space;
}

AddressSpace::AddressSpace(AddressSpace&& other) noexcept { *this = std::move(other); }

AddressSpace& AddressSpace::operator=(AddressSpace&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

AddressSpace::~AddressSpace() {
  if (data_ != nullptr) {
    munmap(data_, bytes_);
  }
}

}  // namespace tandem::shm
