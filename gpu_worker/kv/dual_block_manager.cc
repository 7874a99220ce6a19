#include "gpu_worker/kv/dual_block_manager.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::gpu_worker {
namespace {

Tier OtherTier(Tier tier) { return tier == Tier::kGpu ? Tier::kCpu : Tier::kGpu; }

}  // namespace

DualBlockManager::DualBlockManager(const PoolSizes& sizes)
    : gpu_(sizes.gpu_blocks, sizes.gpu_block_tokens),
      cpu_(sizes.cpu_blocks, sizes.cpu_block_tokens) {
  gpu_.SetUsable(sizes.gpu_blocks);
}

Tier DualBlockManager::tier_of(uint64_t sequence) const {
  const auto it = entries_.find(sequence);
  return it == entries_.end() ? Tier::kNone : it->second.tier;
}

std::span<const int32_t> DualBlockManager::table(uint64_t sequence) const {
  const auto it = entries_.find(sequence);
  return it == entries_.end() ? std::span<const int32_t>() : it->second.table;
}

std::span<const int32_t> DualBlockManager::destination_table(uint64_t sequence) const {
  const auto it = entries_.find(sequence);
  return it == entries_.end() ? std::span<const int32_t>() : it->second.destination;
}

int32_t DualBlockManager::blocks_of(uint64_t sequence) const {
  return static_cast<int32_t>(table(sequence).size());
}

void DualBlockManager::BeginStep() {
  TANDEM_CHECK(!in_step_);
  in_step_ = true;
}

DualBlockManager::Entry& DualBlockManager::Touch(uint64_t sequence) {
  TANDEM_CHECK(in_step_);
  Entry& entry = entries_[sequence];
  if (!entry.touched) {
    entry.touched = true;
    entry.committed_blocks = entry.table.size();
    touched_.push_back(sequence);
  }
  return entry;
}

bool DualBlockManager::Reserve(uint64_t sequence, Tier tier, int64_t tokens) {
  TANDEM_CHECK(tier != Tier::kNone);
  BlockPool& pool = pool_of(tier);
  const auto it = entries_.find(sequence);
  const bool is_move = it != entries_.end() && it->second.moving;
  const size_t present =
      it == entries_.end() ? 0 : (is_move ? it->second.destination : it->second.table).size();
  const int32_t missing =
      std::max<int32_t>(pool.BlocksFor(tokens) - static_cast<int32_t>(present), 0);
  if (missing > pool.free_blocks()) {
    return false;
  }
  Entry& entry = Touch(sequence);
  if (entry.tier == Tier::kNone) {
    entry.tier = tier;
  }
  TANDEM_CHECK(is_move ? entry.tier != tier : entry.tier == tier);
  return pool.Allocate(sequence, missing, is_move ? &entry.destination : &entry.table);
}

bool DualBlockManager::ReserveMove(uint64_t sequence, Tier to, int64_t tokens) {
  BlockPool& pool = pool_of(to);
  const int32_t wanted = pool.BlocksFor(tokens);
  if (wanted > pool.free_blocks()) {
    return false;
  }
  Entry& entry = Touch(sequence);
  TANDEM_CHECK(entry.tier != Tier::kNone && entry.tier != to && !entry.moving);
  entry.moving = true;
  return pool.Allocate(sequence, wanted, &entry.destination);
}

template <typename End>
void DualBlockManager::EndStep(End end) {
  TANDEM_CHECK(in_step_);
  for (const uint64_t sequence : touched_) {
    const auto it = entries_.find(sequence);
    if (it != entries_.end()) {
      it->second.touched = false;
      end(sequence, it->second);
    }
  }
  touched_.clear();
  in_step_ = false;
}

void DualBlockManager::CommitStep() {
  EndStep([this](uint64_t sequence, Entry& entry) {
    if (entry.moving) {
      pool_of(entry.tier).Free(sequence, entry.table);
      entry.tier = OtherTier(entry.tier);
      entry.table = std::move(entry.destination);
      entry.destination.clear();
      entry.moving = false;
    }
  });
}

void DualBlockManager::RollbackStep() {
  EndStep([this](uint64_t sequence, Entry& entry) {
    if (entry.moving) {
      pool_of(OtherTier(entry.tier)).Free(sequence, entry.destination);
      entry.destination.clear();
      entry.moving = false;
    }
    pool_of(entry.tier).Free(sequence, std::span(entry.table).subspan(entry.committed_blocks));
    entry.table.resize(entry.committed_blocks);
    if (entry.table.empty()) {
      entries_.erase(sequence);
    }
  });
}

void DualBlockManager::Release(uint64_t sequence) {
  const auto it = entries_.find(sequence);
  if (it == entries_.end()) {
    return;
  }
  TANDEM_CHECK(!it->second.touched);
  pool_of(it->second.tier).Free(sequence, it->second.table);
  entries_.erase(it);
}

KvSnapshot DualBlockManager::Snapshot() const {
  KvSnapshot snapshot;
  for (const BlockPool* pool : {&gpu_, &cpu_}) {
    PoolSnapshot& out = pool == &gpu_ ? snapshot.gpu : snapshot.cpu;
    out.total_blocks = pool->total_blocks();
    out.usable_blocks = pool->usable_blocks();
    out.block_tokens = pool->block_tokens();
    out.owners.assign(pool->owners().begin(), pool->owners().end());
    out.free_list.assign(pool->free_list().begin(), pool->free_list().end());
  }
  for (const auto& [sequence, entry] : entries_) {
    snapshot.tables.push_back({sequence, entry.tier, entry.table, entry.destination});
  }
  return snapshot;
}

}  // namespace tandem::gpu_worker
