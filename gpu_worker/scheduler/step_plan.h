#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/cost_model/step_load.h"
#include "gpu_worker/kv/block_pool.h"

namespace tandem::gpu_worker {

// The rows of one sequence. A sequence without blocks is admitted by its first rows.
struct PlannedWork {
  uint64_t sequence_id = 0;
  Tier tier = Tier::kGpu;  // where its KV is in this step, after the step's moves
  bool is_prefill = false;
  int32_t num_tokens = 1;
};

struct PlannedMove {
  uint64_t sequence_id = 0;
  bool to_cpu = false;
};

// One step, decided. Plain value.
struct StepPlan {
  StepMode mode = StepMode::kGpuOnly;
  StageOrder order = StageOrder::kOverlapped;  // of the asymmetric mode
  std::vector<PlannedWork> sub_batch[2];       // A, B
  std::vector<PlannedMove> moves;              // one direction only
  std::vector<uint64_t> recompute;             // lose their KV and wait again; done before the step
  StepPrediction predicted;
  double progress = 0;  // decodes, and prefill chunks as shares of their prompts
  double value = 0;     // of its work, in microseconds of the device alone (work_value.h)
  double gpu_only_value_per_us = 0;  // what the device alone would have made of this moment

  bool has_step() const { return !sub_batch[0].empty() || !sub_batch[1].empty() || !moves.empty(); }
};

}  // namespace tandem::gpu_worker
