#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpu_worker/device/device.h"
#include "gpu_worker/device/paced/pace_clock.h"

namespace tandem::gpu_worker::device {

class PacedStream;

// What the streams and events of one emulated device share. Everything that only takes device time
// (charges, records, waits, stamps) is booked as soon as it can be, by whichever thread is there,
// and ahead of the clock; only work that touches the outside runs on a stream's thread.
class PacedTimeline {
 public:
  explicit PacedTimeline(PaceClock* clock) : clock_(clock) {}

 private:
  friend class PacedEvent;
  friend class PacedStream;
  // Books whatever has become possible; with the lock held.
  void Settle();

  PaceClock* const clock_;
  std::mutex mutex_;
  std::condition_variable event_reached_;
  std::vector<PacedStream*> streams_;
};

// Reached at a point of device time that may still lie ahead.
class PacedEvent : public Event {
 public:
  explicit PacedEvent(PacedTimeline* timeline) : timeline_(timeline) {}
  bool Reached() const override;
  absl::Status Wait(int64_t timeout_us) override;

 private:
  friend class PacedStream;
  PacedTimeline* const timeline_;
  uint64_t newest_ = 0;  // guarded by the timeline's lock
  uint64_t reached_ = 0;
  double reached_us_ = 0;
};

// A stream with a timeline of its own: what is queued begins at the latest of the stream's time,
// its dependencies' times and the time at which it was queued, and ends when it has taken its time.
class PacedStream : public Stream {
 public:
  PacedStream(PacedTimeline* timeline, const std::string& thread_name);
  ~PacedStream() override;

  // Waits on the stream's thread until the clock has caught up with device time, then runs `work`.
  // What it took is charged; that it came late is not.
  void Launch(std::function<absl::Status()> work) override;
  // Runs `work` on the stream's thread in its turn, ahead of device time: for effects that nobody
  // looks at before a later Launch, and for waiting for the outside. Device time goes on from where
  // it is, or from the end of work that blocked past it.
  void LaunchAhead(std::function<absl::Status()> work);
  // Like Launch, for work that the device takes this long for: bulk copies, whose bytes are really
  // moved. Work that takes longer is charged as long as it took.
  void LaunchFor(double duration_us, std::function<absl::Status()> work);
  // The device is busy for this long.
  void Charge(double duration_us);
  void Record(Event& event) override;
  void WaitFor(Event& event) override;
  void Stamp(double* time_us) override;
  // Until the queue is empty and the clock has caught up.
  absl::Status Synchronize(int64_t timeout_us) override;

  // Enough for a step of a model of 100 layers; beyond that the queueing thread waits.
  static constexpr size_t kCapacity = 4096;

 private:
  friend class PacedTimeline;
  enum class Kind { kCharge, kRecord, kWait, kStamp, kWork, kWorkAhead };
  struct Command {
    Kind kind = Kind::kCharge;
    double queued_us = 0;
    double duration_us = 0;
    double* stamp = nullptr;
    PacedEvent* event = nullptr;
    uint64_t ticket = 0;
    std::function<absl::Status()> work;
  };

  void Push(Command command);
  bool HeadIsWork() const;
  // Books commands at the head, up to one that needs the thread or an event that is not reached.
  // Whether any was.
  bool Book();
  void Apply(const Command& command);
  void Pop();
  void Run();
  // On the thread, without the lock.
  absl::Status RunWork(const Command& command);

  PacedTimeline* const timeline_;
  std::condition_variable head_is_work_;  // or stop_
  std::condition_variable not_full_;
  std::condition_variable idle_;
  std::vector<Command> ring_;
  size_t head_ = 0;
  size_t count_ = 0;
  bool running_ = false;  // the head runs on the thread
  bool stop_ = false;
  double time_us_ = 0;  // the thread's while running_
  absl::Status first_error_;
  std::thread thread_;
};

}  // namespace tandem::gpu_worker::device
