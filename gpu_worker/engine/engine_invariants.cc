#include "gpu_worker/engine/engine_invariants.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/base/status_macros.h"

namespace tandem::gpu_worker {
namespace {

absl::Status Broken(uint64_t sequence, const char* what) {
  return absl::InternalError("sequence " + std::to_string(sequence) + ": " + what);
}

absl::Status CheckCounts(const SequenceView& view) {
  if (view.cached_tokens < 0 || view.cached_tokens > view.total_tokens ||
      view.prefill_end > view.total_tokens) {
    return Broken(view.id, "token counts contradict each other");
  }
  if (view.tier != Tier::kNone && view.cached_tokens >= view.prefill_end &&
      view.cached_tokens + 1 != view.total_tokens) {
    return Broken(view.id, "decodes without exactly one pending token");
  }
  return absl::OkStatus();
}

absl::Status CheckTable(const SequenceView& view, const TableSnapshot* table,
                        const KvSnapshot& kv) {
  if (view.tier == Tier::kNone) {
    return table == nullptr ? absl::OkStatus() : Broken(view.id, "waits with blocks");
  }
  if (table == nullptr || table->tier != view.tier) {
    return Broken(view.id, "has no blocks where it lives");
  }
  const auto blocks = static_cast<int64_t>(table->table.size());
  const PoolSnapshot& pool = view.tier == Tier::kGpu ? kv.gpu : kv.cpu;
  if (blocks * pool.block_tokens < view.cached_tokens) {
    return Broken(view.id, "its blocks do not cover its cache");
  }
  return blocks >= view.blocks ? absl::OkStatus() : Broken(view.id, "lost blocks");
}

absl::Status CheckQueue(const CoreSnapshot& snapshot,
                        absl::flat_hash_map<uint64_t, const SequenceView*>& open) {
  const SequenceView* last = nullptr;
  for (const uint64_t id : snapshot.waiting) {
    const auto it = open.find(id);
    if (it == open.end()) {
      return Broken(id, "is in the queue but unknown or there twice");
    }
    if (it->second->tier != Tier::kNone) {
      return Broken(id, "is in the queue and runs");
    }
    if (last != nullptr && !IsOlder(*last, *it->second)) {
      return Broken(id, "is out of order in the queue");
    }
    last = it->second;
    open.erase(it);
  }
  for (const auto& [id, view] : open) {
    if (view->tier == Tier::kNone) {
      return Broken(id, "is neither in the queue nor anywhere else");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCoreInvariants(const CoreSnapshot& snapshot) {
  TANDEM_RETURN_IF_ERROR(CheckKvInvariants(snapshot.kv));
  absl::flat_hash_map<uint64_t, const TableSnapshot*> tables;
  for (const TableSnapshot& table : snapshot.kv.tables) {
    tables[table.sequence_id] = &table;
  }
  absl::flat_hash_map<uint64_t, const SequenceView*> open;
  for (const SequenceView& view : snapshot.sequences) {
    open[view.id] = &view;
    const auto table = tables.find(view.id);
    TANDEM_RETURN_IF_ERROR(CheckCounts(view));
    TANDEM_RETURN_IF_ERROR(
        CheckTable(view, table == tables.end() ? nullptr : table->second, snapshot.kv));
    tables.erase(view.id);
  }
  if (!tables.empty()) {
    return Broken(tables.begin()->first, "has blocks but is unknown");
  }
  return CheckQueue(snapshot, open);
}

}  // namespace tandem::gpu_worker
