#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// What the ops and the pipeline need of a device, by noun. CUDA's model: work is queued on streams
// and runs later, in order within a stream; events order streams among each other.
namespace tandem::gpu_worker::device {

// Memory of the device. Not zeroed; pages may be untouched. Frees itself; the caller makes sure
// that no queued work uses it any more.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data());
  }
};

// A point in a stream, set by Stream::Record. May be recorded again; waits refer to the newest
// record at the time they are queued. An event that was never recorded counts as reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Reached() const = 0;
  // Blocks the calling host thread. DeadlineExceeded after `timeout_us`.
  virtual absl::Status Wait(int64_t timeout_us) = 0;
};

// An in-order queue of work. One host thread queues at a time. Queueing blocks while the bounded
// queue is full.
class Stream {
 public:
  virtual ~Stream() = default;  // finishes what is queued

  // Runs `work` in stream order. The first error stays with the stream: work behind it is skipped
  // (events are still reached) until Synchronize returns it.
  virtual void Launch(std::function<absl::Status()> work) = 0;
  // `event` is reached when everything queued before has run.
  virtual void Record(Event& event) = 0;
  // Work queued later waits until `event`'s newest record, of any stream, is reached.
  virtual void WaitFor(Event& event) = 0;
  // Zeroes device memory, in stream order.
  virtual void Clear(std::byte* data, size_t bytes) {
    Launch([data, bytes] {
      std::memset(data, 0, bytes);
      return absl::OkStatus();
    });
  }
  // Copies device memory to the host's (of Device::AllocateHost), in stream order.
  virtual void CopyToHost(void* to, const std::byte* from, size_t bytes) {
    Launch([to, from, bytes] {
      std::memcpy(to, from, bytes);
      return absl::OkStatus();
    });
  }
  // Writes the device's time at which everything queued before has run, in microseconds of
  // base::SystemClock. `time_us` is readable after the next Synchronize.
  virtual void Stamp(double* time_us) = 0;
  // Blocks the calling host thread until the queue is empty and idle, then returns the first error
  // since the last call. DeadlineExceeded after `timeout_us`: work is still running.
  virtual absl::Status Synchronize(int64_t timeout_us) = 0;
};

enum class DeviceKind {
  kHost,   // this machine's cores
  kPaced,  // emulated: operations take time and compute nothing
  kCuda,   // an NVIDIA GPU
};

struct MemoryInfo {
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
};

// Memory of the host that the device may reach while this lives.
class Registration {
 public:
  virtual ~Registration() = default;
};

// Objects made by a device must not outlive it. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual std::string_view name() const = 0;
  virtual MemoryInfo memory() const = 0;
  // Whether transfers run beside compute without slowing it (copy engines). Where not, a second
  // stream only costs thread switches.
  virtual bool has_copy_engine() const = 0;
  // ResourceExhausted when the memory is not there. `what` names the use in the error.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes, const char* what) = 0;
  // Memory of the host for Stream::CopyToHost; null where buffers are the host's memory already.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> AllocateHost(size_t /*bytes*/,
                                                               const char* /*what*/) {
    return nullptr;
  }
  // Copies the host's memory to a buffer and waits for it. No queued work may be using that memory.
  virtual absl::Status Upload(std::byte* to, const void* from, size_t bytes) {
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }
  // Lets queued work reach memory of the host, at the host's addresses; pins it. Null where there
  // is nothing to do.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(std::byte* /*data*/,
                                                                 size_t /*bytes*/) {
    return nullptr;
  }
  // The stream for kernels: its work may use all compute threads of the device.
  virtual std::unique_ptr<Stream> CreateComputeStream() = 0;
  virtual std::unique_ptr<Stream> CreateTransferStream() = 0;
  virtual std::unique_ptr<Event> CreateEvent() = 0;
};

}  // namespace tandem::gpu_worker::device
