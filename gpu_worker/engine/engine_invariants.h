#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/kv/kv_invariants.h"
#include "gpu_worker/scheduler/scheduler_state.h"

namespace tandem::gpu_worker {

// A copy of the engine's books, for the checker.
struct CoreSnapshot {
  KvSnapshot kv;
  std::vector<SequenceView> sequences;
  std::vector<uint64_t> waiting;  // in the queue's order
  uint64_t step_index = 0;
};

// Internal, naming the sequence, unless: the KV invariants hold, every sequence either waits (once,
// without blocks, in order) or holds blocks that cover its cache, every block table belongs to a
// sequence, and no count contradicts another.
absl::Status CheckCoreInvariants(const CoreSnapshot& snapshot);

}  // namespace tandem::gpu_worker
