#include "gpu_worker/pipeline/group_watch.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace tandem::gpu_worker {
namespace {

constexpr std::chrono::milliseconds kLookEvery{100};  // how soon a fault frees the other devices

}  // namespace

GroupWatch::GroupWatch(device::CudaGroup* group, int64_t timeout_us)
    : group_(group), timeout_us_(timeout_us), thread_([this] { Loop(); }) {}

GroupWatch::~GroupWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void GroupWatch::Begin() {
  const std::lock_guard lock(mutex_);
  deadline_us_ = base::SystemClock().NowUs() + timeout_us_;
  changed_.notify_all();
}

void GroupWatch::End() {
  const std::lock_guard lock(mutex_);
  deadline_us_ = 0;
  changed_.notify_all();
}

void GroupWatch::Loop() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (deadline_us_ == 0) {
      changed_.wait(lock, [this] { return stop_ || deadline_us_ != 0; });
      continue;
    }
    const bool is_late = base::SystemClock().NowUs() >= deadline_us_;
    lock.unlock();
    Look(is_late);
    lock.lock();
    changed_.wait_for(lock, kLookEvery, [this] { return stop_ || deadline_us_ == 0; });
  }
}

void GroupWatch::Look(bool is_late) {
  absl::Status fault = group_->Look();
  if (fault.ok() && is_late) {
    fault = absl::InternalError(
        absl::StrCat("the GPUs did not end a step within ", timeout_us_, " us"));
  }
  if (!fault.ok()) {
    group_->Abort(fault);
  }
}

}  // namespace tandem::gpu_worker
