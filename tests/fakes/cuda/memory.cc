#include "tests/fakes/cuda/memory.h"

#include <algorithm>
#include <iterator>

namespace tandem::fake_cuda {
namespace {

// Neighbouring ranges count as one.
bool Holds(const std::map<uintptr_t, size_t>& ranges, const void* begin, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  auto after = ranges.upper_bound(address);
  uintptr_t end = address;
  if (after == ranges.begin()) {
    return false;
  }
  for (auto range = std::prev(after); range != ranges.end() && range->first <= end; ++range) {
    end = std::max(end, range->first + range->second);
  }
  return end >= address + bytes;
}

}  // namespace

Memory& GetMemory() {
  static auto* memory = new Memory;
  return *memory;
}

int& CurrentDevice() {
  thread_local int device = -1;
  return device;
}

bool IsPinnedWhole(const void* begin, size_t bytes) {
  const std::lock_guard lock(GetMemory().mutex);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const auto after = GetMemory().pinned.upper_bound(address);
  return after != GetMemory().pinned.begin() &&
         std::prev(after)->first + std::prev(after)->second >= address + bytes;
}

bool IsPinned(const void* begin, size_t bytes) {
  const std::lock_guard lock(GetMemory().mutex);
  return Holds(GetMemory().pinned, begin, bytes);
}

bool IsDeviceMemory(const void* begin, size_t bytes, int device) {
  const std::lock_guard lock(GetMemory().mutex);
  return Holds(GetMemory().device[device], begin, bytes);
}

}  // namespace tandem::fake_cuda
