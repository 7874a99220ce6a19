#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem::gpu_worker {

// What several CPU attention workers are together: up when all are, with the blocks that are ready
// in every shard. Plain value.
class TierStatus {
 public:
  explicit TierStatus(size_t num_workers) : up_(num_workers, false), blocks_(num_workers, 0) {}

  // True: the whole tier is up from now on.
  bool OnUp(size_t worker) {
    const bool was_up = all_up();
    up_[worker] = true;
    return !was_up && all_up();
  }
  // True: the whole tier is down from now on.
  bool OnDown(size_t worker) {
    const bool was_up = all_up();
    up_[worker] = false;
    return was_up;
  }
  // Blocks [0, result) are ready everywhere.
  int32_t OnBlocksReady(size_t worker, int32_t blocks) {
    blocks_[worker] = blocks;
    return *std::min_element(blocks_.begin(), blocks_.end());
  }
  bool all_up() const {
    return std::all_of(up_.begin(), up_.end(), [](bool up) { return up; });
  }

 private:
  std::vector<bool> up_;
  std::vector<int32_t> blocks_;
};

}  // namespace tandem::gpu_worker
