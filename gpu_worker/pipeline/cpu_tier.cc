#include "gpu_worker/pipeline/cpu_tier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"

namespace tandem::gpu_worker {
namespace {

constexpr int64_t kAbortSliceUs = 20'000;  // how soon a death is noticed meanwhile

}  // namespace

HeadWindow WindowOf(const CpuShard& shard, int32_t rank, int32_t heads_per_rank) {
  const int32_t device_first = rank * heads_per_rank;
  const int32_t first = std::max(device_first, shard.first_kv_head);
  const int32_t end =
      std::min(device_first + heads_per_rank, shard.first_kv_head + shard.pool.num_kv_heads);
  HeadWindow window;
  if (first < end) {
    window = {first - device_first, first - shard.first_kv_head, end - first,
              rank - shard.first_rank};
  }
  return window;
}

absl::StatusOr<std::unique_ptr<CpuTier>> CpuTier::Create(const exchange::Geometry& geometry,
                                                         int32_t num_shards, int32_t num_ranks) {
  const auto heads = static_cast<int32_t>(geometry.num_kv_heads);
  if (num_shards < 1 || num_shards > heads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--cpu-attention-socket: ", num_shards,
        " CPU attention workers share out the model's KV heads; allowed: 1 to ", heads));
  }
  std::unique_ptr<CpuTier> tier(new CpuTier(static_cast<size_t>(num_shards)));
  for (int32_t i = 0; i < num_shards; ++i) {
    CpuShard shard;
    shard.first_kv_head = heads * i / num_shards;
    exchange::Geometry part = geometry;
    part.num_kv_heads = static_cast<uint32_t>(heads * (i + 1) / num_shards - shard.first_kv_head);
    part.num_q_heads = geometry.num_q_heads / geometry.num_kv_heads * part.num_kv_heads;
    const int32_t heads_per_rank = heads / num_ranks;
    const int32_t last_head = shard.first_kv_head + static_cast<int32_t>(part.num_kv_heads) - 1;
    shard.first_rank = shard.first_kv_head / heads_per_rank;
    part.num_posters = static_cast<uint32_t>(last_head / heads_per_rank - shard.first_rank + 1);
    shard.pool = exchange::PoolGeometryOf(part);
    TANDEM_ASSIGN_OR_RETURN(shard.exchange, exchange::DeviceSide::Create(part));
    tier->shards_.push_back(std::move(shard));
  }
  return tier;
}

void CpuTier::SetUp(size_t shard, bool up) {
  workers_[shard].up.store(up);
  if (!up) {
    shards_[shard].exchange->Release();
  }
}

bool CpuTier::all_up() const {
  for (const Worker& worker : workers_) {
    if (!worker.up.load()) {
      return false;
    }
  }
  return true;
}

absl::Status CpuTier::BeginStep(uint64_t epoch, std::span<const exchange::SlotRow> slot_a,
                                std::span<const exchange::SlotRow> slot_b, float scale,
                                int64_t timeout_us) {
  for (size_t i = 0; i < shards_.size(); ++i) {
    workers_[i].entered_epoch = epoch;
    TANDEM_RETURN_IF_ERROR(
        shards_[i].exchange->BeginStep(epoch, slot_a, slot_b, scale, timeout_us));
  }
  return absl::OkStatus();
}

exchange::LayerTiming CpuTier::layer_timing(int slot, int32_t layer) const {
  exchange::LayerTiming all = shards_[0].exchange->layer_timing(slot, layer);
  for (const CpuShard& shard : shards_) {
    const exchange::LayerTiming one = shard.exchange->layer_timing(slot, layer);
    if (one.end_us == 0) {
      return {};
    }
    all.begin_us = std::min(all.begin_us, one.begin_us);
    all.end_us = std::max(all.end_us, one.end_us);
  }
  return all;
}

void CpuTier::EndStep() {
  for (Worker& worker : workers_) {
    worker.entered_epoch = 0;
  }
}

absl::Status CpuTier::LeaveStep(int64_t timeout_us) {
  const base::Clock& clock = base::SystemClock();
  const int64_t deadline_us = clock.NowUs() + timeout_us;
  for (size_t i = 0; i < shards_.size(); ++i) {
    Worker& worker = workers_[i];
    // One that is not up is dead; its successor takes no part in what it finds, and says so at
    // once.
    while (worker.entered_epoch != 0 && worker.up.load()) {
      absl::Status left = shards_[i].exchange->AbortStep(worker.entered_epoch, kAbortSliceUs);
      if (left.ok()) {
        break;
      }
      if (clock.NowUs() >= deadline_us) {
        return left;
      }
    }
    worker.entered_epoch = 0;
  }
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker
