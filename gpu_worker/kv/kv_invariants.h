#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/kv/block_pool.h"

namespace tandem::gpu_worker {

// A copy of both pools' books, for the checker.
struct PoolSnapshot {
  int32_t total_blocks = 0;
  int32_t usable_blocks = 0;
  int32_t block_tokens = 1;
  std::vector<uint64_t> owners;  // by block id; BlockPool::kFree: nobody
  std::vector<int32_t> free_list;
};

struct TableSnapshot {
  uint64_t sequence_id = 0;
  Tier tier = Tier::kNone;
  std::vector<int32_t> table;
  std::vector<int32_t> destination;  // in the other tier
};

struct KvSnapshot {
  PoolSnapshot gpu;
  PoolSnapshot cpu;
  std::vector<TableSnapshot> tables;
};

// Internal, naming block and sequence, unless: every block is either free or in exactly one table,
// its recorded owner is that table's sequence, free + used = usable, nothing beyond the usable part
// is owned or free, and every table belongs to a tier and is not empty.
absl::Status CheckKvInvariants(const KvSnapshot& snapshot);

}  // namespace tandem::gpu_worker
