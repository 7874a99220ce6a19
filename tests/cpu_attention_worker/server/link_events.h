#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "common/exchange/layout.h"
#include "gpu_worker/service/cpu_attention_link.h"

namespace tandem::cpu_attention_worker {

inline exchange::Geometry MakeGeometry(DType compute, DType kv) {
  exchange::Geometry geometry{};
  geometry.num_layers = 3;
  geometry.num_q_heads = 6;
  geometry.num_kv_heads = 2;
  geometry.head_dim = 64;
  geometry.compute_dtype = static_cast<uint32_t>(compute);
  geometry.kv_dtype = static_cast<uint32_t>(kv);
  geometry.block_tokens = kv::kCpuBlockTokens;
  geometry.max_rows = 16;
  geometry.num_blocks = 64;
  geometry.max_table_entries = 128;
  geometry.extent_bytes = exchange::kHugePage;
  geometry.device_wakes = 1;
  return geometry;
}

// What the link reported, to wait for.
class LinkEvents {
 public:
  gpu_worker::CpuAttentionLink::Callbacks Callbacks() {
    return {[this](const std::string&) { Add(&ups_); }, [this] { Add(&downs_); },
            [this](int32_t blocks) {
              const std::lock_guard lock(mutex_);
              blocks_ = blocks;
              changed_.notify_all();
            }};
  }
  bool WaitUps(int count) {
    return Wait([this, count] { return ups_ >= count; });
  }
  bool WaitDowns(int count) {
    return Wait([this, count] { return downs_ >= count; });
  }
  bool WaitBlocks(int32_t count) {
    return Wait([this, count] { return blocks_ >= count; });
  }

 private:
  void Add(int* counter) {
    const std::lock_guard lock(mutex_);
    ++*counter;
    changed_.notify_all();
  }
  template <typename Predicate>
  bool Wait(Predicate predicate) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), predicate);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int ups_ = 0;
  int downs_ = 0;
  int32_t blocks_ = 0;
};

}  // namespace tandem::cpu_attention_worker
