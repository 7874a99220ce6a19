#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "common/exchange/wait.h"

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
  // Runs job(member) on every member and returns when all have returned. One caller at a time.
  void Run(const std::function<void(int)>& job);

 private:
  void MemberLoop(int member);
  exchange::WaitPolicy Policy() const;

  const std::vector<int> cpus_;
  std::atomic<bool> shared_cores_{true};
  std::atomic<bool> stop_{false};
  const std::function<void(int)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
  std::vector<std::thread> threads_;
};

}  // namespace tandem::cpu_attention_worker
