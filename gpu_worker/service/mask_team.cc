#include "gpu_worker/service/mask_team.h"

#include <utility>

namespace tandem::gpu_worker {

MaskTeam::MaskTeam(int num_threads) {
  for (int i = 0; i < num_threads; ++i) {
    AddThread();
  }
}

MaskTeam::~MaskTeam() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void MaskTeam::Run(std::function<void()> job) {
  {
    const std::scoped_lock lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  wake_.notify_one();
}

void MaskTeam::AddThread() {
  const std::scoped_lock lock(mutex_);
  if (!stopping_ && threads_.size() < kMaxThreads) {
    threads_.emplace_back([this] { Loop(); });
  }
}

void MaskTeam::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace tandem::gpu_worker
