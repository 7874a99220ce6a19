#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/pipeline/step_io.h"
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
  // Prefill into CPU blocks: tokens copied per layer, in before attention and out beside the rest.
  int64_t staged_in_tokens = 0;
  int64_t staged_out_tokens = 0;
};

struct StepLoad {
  StepMode mode = StepMode::kGpuOnly;
  StageOrder order = StageOrder::kOverlapped;  // of the asymmetric mode
  SubBatchLoad sub_batch[2];
  int64_t copied_gpu_tokens = 0;  // moves between the pools, all layers
};

// What a step that is about to run asks for; exactly what it was planned as.
StepLoad LoadOf(const StepInput& input);

// A predicted step. Times in microseconds.
struct StepPrediction {
  double total_us = 0;
  double linear_us = 0;  // sums over layers and sub-batches
  double prefill_us = 0;
  double gpu_decode_us = 0;
  double cpu_decode_us = 0;  // busy time of the CPU worker
  double cpu_wait_us = 0;    // of it, exposed to the device
  double copies_us = 0;
  double move_out_us = 0;      // of prompts for the CPU, beside the rest
  double cpu_exchange_us = 0;  // of cpu_decode_us: the way to the CPU worker and back
  double cpu_posts = 0;        // layers' batches that go to the CPU worker
  double cpu_fixed_us = 0;     // of cpu_decode_us: Corrections::cpu_fixed_us
  double launched = 0;         // stages
  double overlap = 1;          // that total_us was made with: 1 is walk_us, 0 is serial_us
  double walk_us = 0;          // device and CPU side by side; without copies_us
  double serial_us = 0;        // one after the other
};

}  // namespace tandem::gpu_worker
