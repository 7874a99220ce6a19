#include "common/shm/residency.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace tandem::shm {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
// Of Linux 5.14 and 6.1; older headers lack them.
constexpr int kMadvPopulateWrite = 23;
constexpr int kMadvCollapse = 25;

// Addresses of the whole aligned huge pages inside a range.
struct HugePages {
  uintptr_t begin = 0;
  uintptr_t end = 0;
};
HugePages WholeHugePages(const std::byte* data, uint64_t bytes) {
  const auto start = reinterpret_cast<uintptr_t>(data);
  return {(start + kHugePage - 1) / kHugePage * kHugePage, (start + bytes) / kHugePage * kHugePage};
}

}  // namespace

absl::Status PopulatePages(std::byte* data, uint64_t bytes) {
  while (madvise(data, bytes, kMadvPopulateWrite) != 0) {
    if (errno == EINTR || errno == EAGAIN) {
      continue;
    }
    if (errno == ENOMEM || errno == EFAULT || errno == EHWPOISON) {
      return absl::ResourceExhaustedError("no memory for the pages of the CPU KV pool");
    }
    // An older kernel: an atomic no-op write per page.
    for (uint64_t offset = 0; offset < bytes; offset += kPage) {
      reinterpret_cast<std::atomic<uint8_t>*>(data + offset)->fetch_or(0);
    }
    break;
  }
  return absl::OkStatus();
}

absl::Status PopulateSparsely(std::byte* data, uint64_t bytes) {
  const HugePages pages = WholeHugePages(data, bytes);
  for (uintptr_t page = pages.begin; page < pages.end; page += kHugePage) {
    if (absl::Status status = PopulatePages(reinterpret_cast<std::byte*>(page), kPage);
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CollapseToHugePages(std::byte* data, uint64_t bytes) {
  const HugePages pages = WholeHugePages(data, bytes);
  if (pages.begin >= pages.end) {
    return absl::OkStatus();
  }
  if (madvise(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin, kMadvCollapse) == 0) {
    return absl::OkStatus();
  }
  const std::string why = std::strerror(errno);
  return errno == EINVAL || errno == ENOSYS || errno == EPERM
             ? absl::UnimplementedError("the kernel makes no 2 MiB pages of shared memory: " + why)
             : absl::UnavailableError("the kernel has no 2 MiB pages just now: " + why);
}

absl::Status LockPages(std::byte* data, uint64_t bytes) {
  if (mlock(data, bytes) == 0) {
    return absl::OkStatus();
  }
  const std::string why = std::strerror(errno);
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return absl::ResourceExhaustedError(absl::StrCat("locking ", bytes, " bytes in memory: ", why,
                                                   "; RLIMIT_MEMLOCK is ", limit.rlim_cur));
}

uint64_t HugePageBytes(const std::byte* data, uint64_t bytes_wanted) {
  const auto first = reinterpret_cast<uint64_t>(data);
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  uint64_t bytes = 0;
  while (std::getline(smaps, line)) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = begin < first + bytes_wanted && first < end;
      continue;
    }
    for (const std::string_view field :
         {"ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"}) {
      if (inside && line.starts_with(field)) {
        bytes += uint64_t{1024} * std::strtoul(line.c_str() + field.size(), nullptr, 10);  // kB
      }
    }
  }
  return bytes;
}

}  // namespace tandem::shm
