#include "gpu_worker/kv/block_pool.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::gpu_worker {

BlockPool::BlockPool(int32_t total_blocks, int32_t block_tokens)
    : block_tokens_(block_tokens), owners_(static_cast<size_t>(total_blocks), kFree) {
  TANDEM_CHECK(total_blocks >= 0 && block_tokens > 0);
  free_.reserve(owners_.size());
}

void BlockPool::SetUsable(int32_t count) {
  const int32_t wanted = std::min(count, total_blocks());
  if (wanted <= usable_blocks_) {
    return;
  }
  // Below the present free blocks, highest id first: the lowest new id is handed out first.
  std::vector<int32_t> added;
  for (int32_t block = wanted - 1; block >= usable_blocks_; --block) {
    added.push_back(block);
  }
  free_.insert(free_.begin(), added.begin(), added.end());
  usable_blocks_ = wanted;
}

bool BlockPool::Allocate(uint64_t owner, int32_t count, std::vector<int32_t>* table) {
  TANDEM_CHECK(owner != kFree && count >= 0);
  if (count > free_blocks()) {
    return false;
  }
  for (int32_t i = 0; i < count; ++i) {
    const int32_t block = free_.back();
    free_.pop_back();
    owners_[static_cast<size_t>(block)] = owner;
    table->push_back(block);
  }
  return true;
}

void BlockPool::Free(uint64_t owner, std::span<const int32_t> blocks) {
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    TANDEM_CHECK(*it >= 0 && *it < usable_blocks_);
    TANDEM_CHECK(owners_[static_cast<size_t>(*it)] == owner);
    owners_[static_cast<size_t>(*it)] = kFree;
    free_.push_back(*it);
  }
}

}  // namespace tandem::gpu_worker
