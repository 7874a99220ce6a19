#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "common/topology/topology.h"

namespace tandem::cpu_attention_worker {

// Makes the pool's memory real in the background: extent by extent it binds the pages to the NUMA
// node, touches them there, asks for 2 MiB pages, looks where they went and locks them where it
// may, so that blocks can be handed out as extents become ready and start is not held up. Never
// changes what the pool holds.
class PoolToucher {
 public:
  struct Options {
    std::byte* pool = nullptr;
    uint64_t pool_bytes = 0;
    uint64_t extent_bytes = 0;
    const topology::Topology* topology = nullptr;  // null: no binding
    int numa_node = 0;
    std::vector<int> cpus;  // where the pages are touched first
    bool collapse = true;   // false: pages stay as they are: reserved huge ones, or a device may
                            // have pinned them
  };
  // Called on the toucher's thread.
  struct Callbacks {
    std::function<void(uint32_t count)> on_extents_ready;  // extents [0, count)
    std::function<void(const std::string& message)> on_warning;
  };

  PoolToucher(Options options, Callbacks callbacks);
  ~PoolToucher();  // as Stop
  PoolToucher(const PoolToucher&) = delete;
  PoolToucher& operator=(const PoolToucher&) = delete;

  void Start();  // once
  // Stops after the extent it is at; no callback is running any more when this returns.
  void Stop();
  // Every extent is ready, or memory ran out.
  bool finished() const { return finished_.load(); }
  // Whether every page so far is bound to the node.
  bool memory_bound() const { return memory_bound_.load(); }
  // Of the pages looked at (one per 2 MiB), those that lie on another node than asked for, in bytes
  // of the pool; 0 where the kernel does not tell.
  uint64_t misplaced_bytes() const { return misplaced_bytes_.load(); }
  // What cannot be swapped out.
  uint64_t locked_bytes() const { return locked_bytes_.load(); }
  // Why the rest is not locked; empty: all is. After finished(), or on the toucher's thread.
  const std::string& lock_refusal() const { return lock_refusal_; }

 private:
  void Run();
  // False: no memory left.
  bool TouchExtent(std::byte* data, uint64_t bytes);
  void BindExtent(std::byte* data, uint64_t bytes);
  void MakeHuge(std::byte* data, uint64_t bytes);
  void Lock(std::byte* data, uint64_t bytes);
  void CheckPlacement(const std::byte* data, uint64_t bytes);
  void WarnOnce(bool* warned, const std::string& message);

  const Options options_;
  const Callbacks callbacks_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> finished_{false};
  std::atomic<bool> memory_bound_{true};
  std::atomic<uint64_t> misplaced_bytes_{0};
  std::atomic<uint64_t> locked_bytes_{0};
  std::string lock_refusal_;
  bool try_collapse_;  // false once the kernel said that it cannot
  bool warned_binding_ = false;
  bool warned_collapse_ = false;
  std::thread thread_;
};

// "2MiB", "4KiB", or a mixture such as "62% 2MiB": what backs the pool of this mapping.
std::string PageKind(const std::byte* pool, uint64_t pool_bytes);

}  // namespace tandem::cpu_attention_worker
