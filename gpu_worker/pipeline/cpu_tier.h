#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/exchange/device_side.h"

namespace tandem::gpu_worker {

// What one CPU attention worker holds: some of the KV heads of every block.
struct CpuShard {
  std::unique_ptr<exchange::DeviceSide> exchange;
  kv::PoolGeometry pool;      // of its heads
  int32_t first_kv_head = 0;  // among all
  int32_t first_rank = 0;     // of the devices that hold some of these heads
};

// The KV heads that a device and a CPU attention worker share; none: num_heads is 0.
struct HeadWindow {
  int32_t device_head = 0;  // the first, among the device's
  int32_t shard_head = 0;   // among the worker's
  int32_t num_heads = 0;
  int poster = 0;  // the device, among those of the worker
};
// Of device `rank`, each of which holds `heads_per_rank` KV heads. Pure.
HeadWindow WindowOf(const CpuShard& shard, int32_t rank, int32_t heads_per_rank);

// The exchanges with this host's CPU attention workers, one per NUMA node that is used. KV heads,
// and their query heads, are shared out over them; blocks, steps and rows are the same in each.
// Steps by the engine's step thread, SetUp by any.
class CpuTier {
 public:
  // `geometry` is that of all heads, which `num_ranks` devices share out evenly. InvalidArgument:
  // more shards than KV heads.
  static absl::StatusOr<std::unique_ptr<CpuTier>> Create(const exchange::Geometry& geometry,
                                                         int32_t num_shards, int32_t num_ranks = 1);

  std::span<const CpuShard> shards() const { return shards_; }
  // Whether a worker may take steps; a lost one is known to be dead, and frees whoever waits for
  // it.
  void SetUp(size_t shard, bool up);
  bool all_up() const;

  // As of DeviceSide, with every worker; an error leaves some of them in the step.
  absl::Status BeginStep(uint64_t epoch, std::span<const exchange::SlotRow> slot_a,
                         std::span<const exchange::SlotRow> slot_b, float scale,
                         int64_t timeout_us);
  // From the first worker's begin to the last one's end; zeros where one of them makes no sense.
  exchange::LayerTiming layer_timing(int slot, int32_t layer) const;
  // The step's last layer was joined.
  void EndStep();
  // Until every worker that BeginStep told of the newest step, which did not end, has left it or is
  // dead; DeadlineExceeded: CPU blocks must not be written yet.
  absl::Status LeaveStep(int64_t timeout_us);

 private:
  // A worker's state, beside its shard.
  struct Worker {
    std::atomic<bool> up{false};
    uint64_t entered_epoch = 0;  // 0: it is in no step
  };

  explicit CpuTier(size_t num_shards) : workers_(num_shards) {}

  std::vector<CpuShard> shards_;
  std::vector<Worker> workers_;
};

}  // namespace tandem::gpu_worker
