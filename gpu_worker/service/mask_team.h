#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tandem::gpu_worker {

// A few threads that run short jobs in order. When jobs do not get their turn, because a long one
// holds a thread, more threads are added, up to a bound.
class MaskTeam {
 public:
  explicit MaskTeam(int num_threads);
  ~MaskTeam();  // runs what is queued
  MaskTeam(const MaskTeam&) = delete;
  MaskTeam& operator=(const MaskTeam&) = delete;

  void Run(std::function<void()> job);
  void AddThread();

 private:
  static constexpr size_t kMaxThreads = 8;
  void Loop();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::gpu_worker
