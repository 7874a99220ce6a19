#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace tandem::gpu_worker {

// A thread per device of a group: what one device is told never waits for what another is told. The
// first device's is the calling thread.
class RankTeam {
 public:
  explicit RankTeam(int32_t size);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;

  // Calls `work` with each rank, each on its thread, and returns when all have ended: the worst of
  // their errors. Unavailable and DeadlineExceeded, which another error may have caused, give way
  // to others. One caller at a time.
  absl::Status Run(const std::function<absl::Status(int32_t rank)>& work);

 private:
  void Serve(int32_t rank);

  std::vector<absl::Status> results_;  // by rank
  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<absl::Status(int32_t)>* work_ = nullptr;
  uint64_t round_ = 0;
  int32_t running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace tandem::gpu_worker
