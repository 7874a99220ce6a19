#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gpu_worker/device/device.h"

namespace tandem::gpu_worker::device {

// Tickets: Record takes the next one, the stream's thread reaches it.
class HostEvent : public Event {
 public:
  bool Reached() const override;
  absl::Status Wait(int64_t timeout_us) override;

  uint64_t TakeTicket();
  uint64_t newest_ticket() const;
  void Reach(uint64_t ticket);
  void WaitForTicket(uint64_t ticket);

 private:
  mutable std::mutex mutex_;
  std::condition_variable reached_changed_;
  uint64_t newest_ = 0;
  uint64_t reached_ = 0;
};

// A bounded queue with a thread of its own, which runs `thread_start` first.
class HostStream : public Stream {
 public:
  HostStream(std::string thread_name, std::function<void()> thread_start);
  ~HostStream() override;

  void Launch(std::function<absl::Status()> work) override;
  void Record(Event& event) override;
  void WaitFor(Event& event) override;
  void Stamp(double* time_us) override;
  absl::Status Synchronize(int64_t timeout_us) override;

  // Deep enough for a step of a model of 100 layers; beyond that the queueing thread waits.
  static constexpr size_t kCapacity = 2048;

 private:
  struct Command {
    std::function<absl::Status()> work;
    bool always = false;  // runs after an error too
  };
  void Push(Command command);
  void Run();

  std::mutex mutex_;
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::condition_variable idle_changed_;
  std::array<Command, kCapacity> ring_;
  size_t head_ = 0;   // next to run
  size_t count_ = 0;  // queued, the running one included
  bool stop_ = false;
  absl::Status first_error_;
  std::thread thread_;
};

}  // namespace tandem::gpu_worker::device
