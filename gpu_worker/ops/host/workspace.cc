#include "gpu_worker/ops/host/workspace.h"

namespace tandem::gpu_worker::ops::host {
namespace {
constexpr size_t kAlignFloats = 16;
}

void Workspace::Grow(Block& block, size_t floats) {
  if (block.memory.size() >= floats + kAlignFloats) {
    return;
  }
  block.memory.assign(floats + kAlignFloats, 0.0f);
  const auto address = reinterpret_cast<uintptr_t>(block.memory.data());
  const uintptr_t aligned = (address + 63) / 64 * 64;
  block.data = block.memory.data() + (aligned - address) / sizeof(float);
}

void Workspace::PrepareThreads(int threads, size_t floats) {
  if (threads_.size() < static_cast<size_t>(threads)) {
    threads_.resize(static_cast<size_t>(threads));
  }
  for (Block& block : threads_) {
    Grow(block, floats);
  }
}

float* Workspace::SharedScratch(int slot, size_t floats) {
  Grow(shared_[slot], floats);
  return shared_[slot].data;
}

}  // namespace tandem::gpu_worker::ops::host
