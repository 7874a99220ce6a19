#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/kv/block_pool.h"
#include "gpu_worker/kv/kv_invariants.h"

namespace tandem::gpu_worker {

struct PoolSizes {
  int32_t gpu_blocks = 0;
  int32_t gpu_block_tokens = 16;
  int32_t cpu_blocks = 0;
  int32_t cpu_block_tokens = 128;
};

// Block tables of every sequence in both pools. Changes of a step are made between BeginStep and
// CommitStep or RollbackStep: growth and moves reserve blocks at once, but nothing is given back
// before commit, so a step that is aborted in the middle cannot have overwritten what it must
// restore. Pure; one thread.
class DualBlockManager {
 public:
  explicit DualBlockManager(const PoolSizes& sizes);

  const BlockPool& pool(Tier tier) const { return tier == Tier::kGpu ? gpu_ : cpu_; }
  void SetCpuBlocksReady(int32_t count) { cpu_.SetUsable(count); }

  Tier tier_of(uint64_t sequence) const;  // kNone: it holds nothing
  // In its present tier; unchanged from the reservations of a step until that step ends.
  std::span<const int32_t> table(uint64_t sequence) const;
  // Of the tier it moves to in this step; empty when it does not move.
  std::span<const int32_t> destination_table(uint64_t sequence) const;
  int32_t blocks_of(uint64_t sequence) const;

  void BeginStep();
  // Makes the sequence's table in `tier` cover `tokens`: its first blocks (tier_of was kNone) or
  // more of them. For a sequence that moves to `tier` in this step, its destination grows. False,
  // with nothing done: not enough free blocks.
  bool Reserve(uint64_t sequence, Tier tier, int64_t tokens);
  // Reserves a table for `tokens` in the other tier; the present one is given back at commit.
  bool ReserveMove(uint64_t sequence, Tier to, int64_t tokens);
  void CommitStep();
  void RollbackStep();
  bool in_step() const { return in_step_; }

  // Gives back everything the sequence holds; only between steps, or for one that the step does not
  // use.
  void Release(uint64_t sequence);

  KvSnapshot Snapshot() const;

 private:
  struct Entry {
    Tier tier = Tier::kNone;
    std::vector<int32_t> table;
    size_t committed_blocks = 0;  // of `table`, before this step
    std::vector<int32_t> destination;
    bool touched = false;  // by this step
    bool moving = false;
  };

  BlockPool& pool_of(Tier tier) { return tier == Tier::kGpu ? gpu_ : cpu_; }
  Entry& Touch(uint64_t sequence);
  // Ends the step for every touched sequence that is still there: `end` may erase its entry.
  template <typename End>
  void EndStep(End end);

  BlockPool gpu_;
  BlockPool cpu_;
  bool in_step_ = false;
  absl::flat_hash_map<uint64_t, Entry> entries_;
  std::vector<uint64_t> touched_;
};

}  // namespace tandem::gpu_worker
