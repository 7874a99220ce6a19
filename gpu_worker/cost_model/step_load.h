#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/pipeline/step_mode.h"

namespace tandem::gpu_worker {

// One prefill chunk: `chunk` new tokens, `context` tokens in the cache before them.
struct PrefillLoad {
  int64_t chunk = 0;
  int64_t context = 0;
};

// What one sub-batch asks of device, link and CPU; everything that predicted times depend on.
struct SubBatchLoad {
  int64_t rows = 0;  // through the linear stages: prefill tokens and all decodes
  std::vector<PrefillLoad> prefills;
  int64_t gpu_decodes = 0;
  int64_t gpu_context_tokens = 0;  // sum over the device decodes
  int64_t cpu_decodes = 0;
  int64_t cpu_context_tokens = 0;
  int64_t staged_tokens = 0;  // prefill into CPU blocks: tokens copied in and out per layer
};

struct StepLoad {
  StepMode mode = StepMode::kGpuOnly;
  SubBatchLoad sub_batch[2];
  int64_t copied_gpu_tokens = 0;  // moves between the pools, all layers
};

// A predicted step. Times in microseconds.
struct StepPrediction {
  double total_us = 0;
  double linear_us = 0;  // sums over layers and sub-batches
  double prefill_us = 0;
  double gpu_decode_us = 0;
  double cpu_decode_us = 0;  // busy time of the CPU worker
  double cpu_wait_us = 0;    // of it, exposed to the device
  double copies_us = 0;
};

}  // namespace tandem::gpu_worker
