#include "gpu_worker/device/paced/paced_stream.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::gpu_worker::device {
namespace {

// Work that took longer than this waited for something or did something; below, device time does
// not notice it.
constexpr double kInstantUs = 5.0;

std::chrono::microseconds Microseconds(int64_t us) { return std::chrono::microseconds(us); }

}  // namespace

void PacedTimeline::Settle() {
  bool booked = true;
  while (booked) {
    booked = false;
    for (PacedStream* stream : streams_) {
      booked = stream->Book() || booked;
    }
  }
}

bool PacedEvent::Reached() const {
  const std::lock_guard lock(timeline_->mutex_);
  return reached_ >= newest_ && (newest_ == 0 || timeline_->clock_->NowUs() >= reached_us_);
}

absl::Status PacedEvent::Wait(int64_t timeout_us) {
  absl::Status late = absl::DeadlineExceededError("event not reached in time");
  const double deadline_us = timeline_->clock_->NowUs() + static_cast<double>(timeout_us);
  std::unique_lock lock(timeline_->mutex_);
  const uint64_t ticket = newest_;
  if (!timeline_->event_reached_.wait_for(lock, Microseconds(timeout_us),
                                          [&] { return reached_ >= ticket; })) {
    return late;
  }
  const double until_us = reached_us_;
  lock.unlock();
  timeline_->clock_->SleepUntil(std::min(until_us, deadline_us));
  return until_us <= deadline_us ? absl::OkStatus() : late;
}

PacedStream::PacedStream(PacedTimeline* timeline, const std::string& thread_name)
    : timeline_(timeline), ring_(kCapacity) {
  {
    const std::lock_guard lock(timeline_->mutex_);
    timeline_->streams_.push_back(this);
  }
  thread_ = std::thread([this, name = thread_name.substr(0, 15)] {
    pthread_setname_np(pthread_self(), name.c_str());
    RaisePacePriority();
    Run();
  });
}

PacedStream::~PacedStream() {
  {
    const std::lock_guard lock(timeline_->mutex_);
    stop_ = true;
    head_is_work_.notify_one();
  }
  thread_.join();
  const std::lock_guard lock(timeline_->mutex_);
  std::erase(timeline_->streams_, this);
}

void PacedStream::Launch(std::function<absl::Status()> work) {
  Push({.kind = Kind::kWork, .work = std::move(work)});
}

void PacedStream::LaunchAhead(std::function<absl::Status()> work) {
  Push({.kind = Kind::kWorkAhead, .work = std::move(work)});
}

void PacedStream::LaunchFor(double duration_us, std::function<absl::Status()> work) {
  Push({.kind = Kind::kWork, .duration_us = duration_us, .work = std::move(work)});
}

void PacedStream::Charge(double duration_us) {
  Push({.kind = Kind::kCharge, .duration_us = duration_us});
}

void PacedStream::Record(Event& event) {
  Push({.kind = Kind::kRecord, .event = static_cast<PacedEvent*>(&event)});
}

void PacedStream::WaitFor(Event& event) {
  Push({.kind = Kind::kWait, .event = static_cast<PacedEvent*>(&event)});
}

void PacedStream::Stamp(double* time_us) { Push({.kind = Kind::kStamp, .stamp = time_us}); }

void PacedStream::Push(Command command) {
  command.queued_us = timeline_->clock_->NowUs();
  std::unique_lock lock(timeline_->mutex_);
  not_full_.wait(lock, [&] { return count_ < kCapacity; });
  if (command.kind == Kind::kRecord) {
    command.ticket = ++command.event->newest_;
  } else if (command.kind == Kind::kWait) {
    command.ticket = command.event->newest_;
  }
  ring_[(head_ + count_) % kCapacity] = std::move(command);
  ++count_;
  timeline_->Settle();
}

bool PacedStream::HeadIsWork() const {
  return count_ > 0 && (ring_[head_].kind == Kind::kWork || ring_[head_].kind == Kind::kWorkAhead);
}

bool PacedStream::Book() {
  bool booked = false;
  while (count_ > 0 && !running_) {
    const Command& command = ring_[head_];
    if (HeadIsWork()) {
      head_is_work_.notify_one();
      break;
    }
    if (command.kind == Kind::kWait && command.event->reached_ < command.ticket) {
      break;
    }
    Apply(command);
    Pop();
    booked = true;
  }
  return booked;
}

void PacedStream::Apply(const Command& command) {
  time_us_ = std::max(time_us_, command.queued_us);
  switch (command.kind) {
    case Kind::kCharge:
      time_us_ += first_error_.ok() ? command.duration_us : 0.0;
      break;
    case Kind::kStamp:
      *command.stamp = time_us_;
      break;
    case Kind::kRecord:
      command.event->reached_ = command.ticket;
      command.event->reached_us_ = time_us_;
      timeline_->event_reached_.notify_all();
      break;
    case Kind::kWait:
      time_us_ = std::max(time_us_, command.event->reached_us_);
      break;
    case Kind::kWork:
    case Kind::kWorkAhead:
      break;
  }
}

void PacedStream::Pop() {
  ring_[head_].work = nullptr;
  head_ = (head_ + 1) % kCapacity;
  if (--count_ == kCapacity - 1) {
    not_full_.notify_one();
  }
  if (count_ == 0) {
    idle_.notify_all();
  }
}

void PacedStream::Run() {
  std::unique_lock lock(timeline_->mutex_);
  while (true) {
    head_is_work_.wait(lock, [&] { return HeadIsWork() || (stop_ && count_ == 0); });
    if (count_ == 0) {
      return;
    }
    running_ = true;
    const bool skip = !first_error_.ok();
    lock.unlock();
    absl::Status status = skip ? absl::OkStatus() : RunWork(ring_[head_]);
    lock.lock();
    running_ = false;
    if (!status.ok() && first_error_.ok()) {
      first_error_ = std::move(status);
    }
    Pop();
    timeline_->Settle();
  }
}

absl::Status PacedStream::RunWork(const Command& command) {
  PaceClock& clock = *timeline_->clock_;
  time_us_ = std::max(time_us_, command.queued_us);
  if (command.kind == Kind::kWork) {
    clock.SleepUntil(time_us_);
  }
  const double began_us = clock.NowUs();
  absl::Status status;
  try {
    status = command.work();
  } catch (const std::exception& e) {  // of a library
    status = absl::InternalError(absl::StrCat("device work failed: ", e.what()));
  }
  const double ended_us = clock.NowUs();
  const double took_us = ended_us - began_us > kInstantUs ? ended_us - began_us : 0.0;
  if (command.kind == Kind::kWork) {
    time_us_ += std::max(command.duration_us, took_us);
  } else if (took_us > 0) {
    time_us_ = std::max(time_us_, ended_us);
  }
  return status;
}

absl::Status PacedStream::Synchronize(int64_t timeout_us) {
  absl::Status late = absl::DeadlineExceededError("the stream's work did not end in time");
  const double deadline_us = timeline_->clock_->NowUs() + static_cast<double>(timeout_us);
  std::unique_lock lock(timeline_->mutex_);
  if (!idle_.wait_for(lock, Microseconds(timeout_us), [&] { return count_ == 0; })) {
    return late;
  }
  const double until_us = time_us_;
  if (until_us > deadline_us) {
    lock.unlock();
    timeline_->clock_->SleepUntil(deadline_us);
    return late;
  }
  absl::Status status = std::exchange(first_error_, absl::OkStatus());
  lock.unlock();
  timeline_->clock_->SleepUntil(until_us);
  return status;
}

}  // namespace tandem::gpu_worker::device
