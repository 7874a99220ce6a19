#include "gpu_worker/device/host/host_stream.h"

#include <pthread.h>

#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"

namespace tandem::gpu_worker::device {

bool HostEvent::Reached() const {
  std::lock_guard lock(mutex_);
  return reached_ >= newest_;
}

absl::Status HostEvent::Wait(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  const uint64_t ticket = newest_;
  if (!reached_changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                                 [&] { return reached_ >= ticket; })) {
    return absl::DeadlineExceededError("event not reached in time");
  }
  return absl::OkStatus();
}

uint64_t HostEvent::TakeTicket() {
  std::lock_guard lock(mutex_);
  return ++newest_;
}

uint64_t HostEvent::newest_ticket() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

void HostEvent::Reach(uint64_t ticket) {
  // Notified under the lock: a waiter may destroy the event as soon as it sees the ticket.
  std::lock_guard lock(mutex_);
  reached_ = std::max(reached_, ticket);
  reached_changed_.notify_all();
}

void HostEvent::WaitForTicket(uint64_t ticket) {
  std::unique_lock lock(mutex_);
  reached_changed_.wait(lock, [&] { return reached_ >= ticket; });
}

HostStream::HostStream(std::string thread_name, std::function<void()> thread_start) {
  thread_ = std::thread(
      [this, thread_name = std::move(thread_name), thread_start = std::move(thread_start)] {
        pthread_setname_np(pthread_self(), thread_name.substr(0, 15).c_str());
        if (thread_start) {
          thread_start();
        }
        Run();
      });
}

HostStream::~HostStream() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    not_empty_.notify_one();
  }
  thread_.join();
}

void HostStream::Launch(std::function<absl::Status()> work) { Push({std::move(work), false}); }

void HostStream::Record(Event& event) {
  auto& host_event = static_cast<HostEvent&>(event);
  const uint64_t ticket = host_event.TakeTicket();
  Push({[&host_event, ticket] {
          host_event.Reach(ticket);
          return absl::OkStatus();
        },
        true});
}

void HostStream::WaitFor(Event& event) {
  auto& host_event = static_cast<HostEvent&>(event);
  const uint64_t ticket = host_event.newest_ticket();
  Push({[&host_event, ticket] {
          host_event.WaitForTicket(ticket);
          return absl::OkStatus();
        },
        true});
}

void HostStream::Stamp(double* time_us) {
  Push({[time_us] {
          *time_us = static_cast<double>(base::SystemClock().NowUs());
          return absl::OkStatus();
        },
        true});
}

void HostStream::Push(Command command) {
  std::unique_lock lock(mutex_);
  not_full_.wait(lock, [&] { return count_ < kCapacity; });
  ring_[(head_ + count_) % kCapacity] = std::move(command);
  ++count_;
  if (count_ == 1) {
    not_empty_.notify_one();
  }
}

absl::Status HostStream::Synchronize(int64_t timeout_us) {
  std::unique_lock lock(mutex_);
  if (!idle_changed_.wait_for(lock, std::chrono::microseconds(timeout_us),
                              [&] { return count_ == 0; })) {
    return absl::DeadlineExceededError("the stream's work did not end in time");
  }
  return std::exchange(first_error_, absl::OkStatus());
}

void HostStream::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    not_empty_.wait(lock, [&] { return count_ > 0 || stop_; });
    if (count_ == 0) {
      return;
    }
    Command command = std::move(ring_[head_]);
    const bool skip = !first_error_.ok() && !command.always;
    lock.unlock();
    absl::Status status;
    if (!skip) {
      try {
        status = command.work();
      } catch (const std::exception& e) {  // of a library: bad_alloc, dnnl::error
        status = absl::InternalError(absl::StrCat("device work failed: ", e.what()));
      }
    }
    command.work = nullptr;
    lock.lock();
    if (!status.ok() && first_error_.ok()) {
      first_error_ = std::move(status);
    }
    head_ = (head_ + 1) % kCapacity;
    if (--count_ == kCapacity - 1) {
      not_full_.notify_one();
    }
    if (count_ == 0) {
      idle_changed_.notify_all();
    }
  }
}

}  // namespace tandem::gpu_worker::device
