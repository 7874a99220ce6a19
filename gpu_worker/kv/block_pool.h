#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::gpu_worker {

// Which pool a sequence's KV lives in: wholly in one, or in none.
enum class Tier { kNone, kGpu, kCpu };

// The block ids of one KV pool and who owns each. Blocks [0, usable) may be handed out; the rest
// become usable later (the CPU pool's extents get ready in the background). Pure; one thread.
class BlockPool {
 public:
  static constexpr uint64_t kFree = 0;  // no sequence has this id

  BlockPool(int32_t total_blocks, int32_t block_tokens);

  int32_t total_blocks() const { return static_cast<int32_t>(owners_.size()); }
  int32_t usable_blocks() const { return usable_blocks_; }
  int32_t free_blocks() const { return static_cast<int32_t>(free_.size()); }
  int32_t used_blocks() const { return usable_blocks_ - free_blocks(); }
  int32_t block_tokens() const { return block_tokens_; }
  int32_t BlocksFor(int64_t tokens) const {
    return static_cast<int32_t>((tokens + block_tokens_ - 1) / block_tokens_);
  }

  // Grows the usable part; a smaller count than before is ignored.
  void SetUsable(int32_t count);
  // Appends `count` blocks owned by `owner` to `*table`; false, with nothing done, when fewer are
  // free.
  bool Allocate(uint64_t owner, int32_t count, std::vector<int32_t>* table);
  // Each block must be owned by `owner`.
  void Free(uint64_t owner, std::span<const int32_t> blocks);

  std::span<const uint64_t> owners() const { return owners_; }
  std::span<const int32_t> free_list() const { return free_; }

 private:
  int32_t block_tokens_;
  int32_t usable_blocks_ = 0;
  std::vector<uint64_t> owners_;  // by block id
  std::vector<int32_t> free_;     // last in, first out
};

}  // namespace tandem::gpu_worker
