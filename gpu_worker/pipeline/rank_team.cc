#include "gpu_worker/pipeline/rank_team.h"

#include <pthread.h>

#include <string>
#include <utility>

#include "common/base/strings.h"

namespace tandem::gpu_worker {
namespace {

bool MayFollowFromAnother(const absl::Status& error) {
  return absl::IsUnavailable(error) || absl::IsDeadlineExceeded(error);
}

absl::Status WorstOf(const std::vector<absl::Status>& results) {
  absl::Status worst;
  for (const absl::Status& result : results) {
    if (worst.ok() ||
        (MayFollowFromAnother(worst) && !result.ok() && !MayFollowFromAnother(result))) {
      worst = result;
    }
  }
  return worst;
}

}  // namespace

RankTeam::RankTeam(int32_t size) : results_(static_cast<size_t>(size)) {
  for (int32_t rank = 1; rank < size; ++rank) {
    threads_.emplace_back([this, rank] { Serve(rank); });
  }
}

RankTeam::~RankTeam() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

absl::Status RankTeam::Run(const std::function<absl::Status(int32_t rank)>& work) {
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    ++round_;
    running_ = static_cast<int32_t>(threads_.size());
    changed_.notify_all();
  }
  results_[0] = work(0);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return running_ == 0; });
  return WorstOf(results_);
}

void RankTeam::Serve(int32_t rank) {
  pthread_setname_np(pthread_self(), base::StrCat("rank ", rank).c_str());
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) {
      return;
    }
    seen = round_;
    const auto* work = work_;
    lock.unlock();
    absl::Status result = (*work)(rank);
    lock.lock();
    results_[static_cast<size_t>(rank)] = std::move(result);
    if (--running_ == 0) {
      changed_.notify_all();
    }
  }
}

}  // namespace tandem::gpu_worker
