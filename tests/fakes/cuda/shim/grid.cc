#include "tests/fakes/cuda/shim/grid.h"

#include <map>
#include <string_view>

#include "tests/fakes/cuda/shim/block.h"

namespace tandem::shim {
namespace {

std::map<std::string_view, KernelEntry>& Kernels() {
  static auto* kernels = new std::map<std::string_view, KernelEntry>;
  return *kernels;
}

// Its fibers and memory serve every kernel that a host thread runs.
Block& ThreadsBlock() {
  static thread_local Block block;
  return block;
}

uint64_t Count(const uint32_t shape[3]) { return uint64_t{shape[0]} * shape[1] * shape[2]; }

bool IsLaunchable(const KernelEntry& kernel, const uint32_t grid[3], const uint32_t block[3]) {
  return Count(grid) > 0 && Count(block) > 0 && Count(block) <= kernel.max_threads &&
         grid[1] <= 65535 && grid[2] <= 65535 && (!kernel.syncs || Count(block) % kWarp == 0);
}

}  // namespace

Registration::Registration(const KernelEntry& entry) { Kernels()[entry.name] = entry; }

size_t KernelParamsBytes(const char* name) {
  const auto found = Kernels().find(name);
  return found == Kernels().end() ? 0 : found->second.params_bytes;
}

bool RunKernel(const char* name, const uint32_t grid[3], const uint32_t block_shape[3],
               uint32_t shared_bytes, const void* params) {
  const auto found = Kernels().find(name);
  if (found == Kernels().end()) {
    return false;
  }
  const KernelEntry& kernel = found->second;
  Block& block = ThreadsBlock();
  block.shape = {
      {grid[0], grid[1], grid[2]}, {block_shape[0], block_shape[1], block_shape[2]}, shared_bytes};
  if (!IsLaunchable(kernel, grid, block_shape)) {
    block.Fault(std::string(name) + " is launched with a grid or block that no device takes");
    return true;
  }
  for (uint32_t z = 0; z < grid[2]; ++z) {
    for (uint32_t y = 0; y < grid[1]; ++y) {
      for (uint32_t x = 0; x < grid[0]; ++x) {
        block.index = {x, y, z};
        block.Run(kernel.name, kernel.run, params, kernel.syncs);
      }
    }
  }
  return true;
}

}  // namespace tandem::shim
