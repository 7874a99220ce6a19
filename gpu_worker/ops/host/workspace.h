#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/attention_kernels/paged_decode.h"
#include "gpu_worker/ops/host/kernels.h"
#include "gpu_worker/ops/host/matmul.h"

namespace tandem::gpu_worker::ops::host {

// What host operators keep between calls. Used by the compute stream's thread and its team only.
class Workspace {
 public:
  Workspace() : kernels_(BestKernels()), isa_(attention::SupportedIsas().front()) {}

  const Kernels& kernels() const { return kernels_; }
  attention::Isa isa() const { return isa_; }  // of decode attention
  MatmulCache& matmuls() { return matmuls_; }

  // The block of a thread of the team, as large as PrepareThreads made it, 64-byte aligned.
  float* ThreadScratch(int thread) { return threads_[static_cast<size_t>(thread)].data; }
  // Makes room for `threads` blocks; call outside of a parallel region.
  void PrepareThreads(int threads, size_t floats);
  // One shared block, kept; outside of a parallel region. `slot` 0 or 1.
  float* SharedScratch(int slot, size_t floats);

 private:
  struct Block {
    std::vector<float> memory;
    float* data = nullptr;
  };
  static void Grow(Block& block, size_t floats);

  const Kernels& kernels_;
  const attention::Isa isa_;
  MatmulCache matmuls_;
  std::vector<Block> threads_;
  Block shared_[2];
};

}  // namespace tandem::gpu_worker::ops::host
