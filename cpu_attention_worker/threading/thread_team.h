#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/exchange/wait.h"
#include "cpu_attention_worker/batch/prefetch_list.h"

namespace tandem::cpu_attention_worker {

// Persistent threads, each pinned to a CPU, that run one function together: one release and one
// arrival per call and thread. The thread that calls Run takes part as member 0. Members wait by
// the policy and are parked when there is nothing to do.
class ThreadTeam {
 public:
  // One member per entry; a negative CPU leaves the member unpinned. Member 0 is pinned when it
  // calls PinCaller. Failing to pin is logged and costs speed only.
  explicit ThreadTeam(const std::vector<int>& cpus);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return static_cast<int>(cpus_.size()); }
  void PinCaller() const;
  void SetPolicy(const exchange::WaitPolicy& policy);
  bool shares_cores() const { return shared_cores_.load(std::memory_order_relaxed); }
  // Runs job(member) on every member and returns when all have returned. One caller at a time.
  void Run(absl::FunctionRef<void(int)> job);
  // What a member asks for after its job until the next one comes; filled by the member itself,
  // inside its job. Member 0's is the caller's to step through.
  PrefetchList& prefetch_list(int member) { return prefetch_lists_[static_cast<size_t>(member)]; }

 private:
  void MemberLoop(int member);
  exchange::WaitPolicy Policy() const;

  const std::vector<int> cpus_;
  std::atomic<bool> shared_cores_{true};
  std::atomic<bool> stop_{false};
  const absl::FunctionRef<void(int)>* job_ = nullptr;
  std::vector<PrefetchList> prefetch_lists_;
  exchange::WaitWord generation_;
  exchange::WaitWord running_;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::cpu_attention_worker
