#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "tests/fakes/cuda/handles.h"

// What memory the fake driver gave out or was told of.
namespace tandem::fake_cuda {

struct Memory {
  std::mutex mutex;
  std::map<uintptr_t, size_t> device[kMaxDevices];
  std::map<uintptr_t, size_t> pinned;  // and registered
  size_t used[kMaxDevices] = {};
};

Memory& GetMemory();

// In one range: copies may not go from one registration to the next.
bool IsPinnedWhole(const void* begin, size_t bytes);
// In ranges that are neighbours: kernels see no border.
bool IsPinned(const void* begin, size_t bytes);

}  // namespace tandem::fake_cuda
