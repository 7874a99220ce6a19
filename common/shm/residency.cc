#include "common/shm/residency.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

namespace tandem::shm {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
// Of Linux 5.14 and 6.1; older headers lack them.
constexpr int kMadvPopulateWrite = 23;
constexpr int kMadvCollapse = 25;

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

absl::Status CollapseToHugePages(std::byte* data, uint64_t bytes) {
  const auto start = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (start + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (start + bytes) / kHugePage * kHugePage;
  if (first >= end) {
    return absl::OkStatus();
  }
  if (madvise(reinterpret_cast<void*>(first), end - first, kMadvCollapse) != 0) {
    return absl::ErrnoToStatus(errno, "collapsing the CPU KV pool to 2 MiB pages");
  }
  return absl::OkStatus();
}

uint64_t HugePageBytes(const std::byte* data) {
  const auto address = reinterpret_cast<uint64_t>(data);
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool inside = false;
  uint64_t bytes = 0;
  while (std::getline(smaps, line)) {
    unsigned long begin = 0;
    unsigned long end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      inside = address >= begin && address < end;
      continue;
    }
    unsigned long kib = 0;
    if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %lu kB", &kib) == 1) {
      bytes += uint64_t{kib} * 1024;
    }
  }
  return bytes;
}

}  // namespace tandem::shm
