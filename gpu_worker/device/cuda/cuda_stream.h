#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/driver_api.h"

namespace tandem::gpu_worker::device {

class DriverGraph;

// Where registered ranges of the host's memory begin, whichever device registered them. A copy must
// stay in one. Any thread.
class RegisteredRanges {
 public:
  static RegisteredRanges& OfProcess();
  void Add(const void* begin);
  void Remove(const void* begin);
  // How much of `bytes` from `host` on lies in one.
  size_t InOne(const void* host, size_t bytes) const;

 private:
  mutable std::mutex mutex_;
  std::set<uintptr_t> begins_;
};

// A device's context, kept while any object of it lives.
class CudaContext {
 public:
  static absl::StatusOr<std::shared_ptr<CudaContext>> Create(int ordinal);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  const DriverApi& api() const { return *api_; }
  CUdevice device() const { return device_; }
  // Never has other work than events that tell the time.
  CUstream clock_stream() const { return clock_stream_; }
  // The graph that is being captured, or null; and whether such takes stream memory operations. Of
  // the thread that queues on streams.
  DriverGraph* capture() const { return capture_; }
  void SetCapture(DriverGraph* graph) { capture_ = graph; }
  bool captures_words() const { return captures_words_; }
  void SetCapturesNoWords() { captures_words_ = false; }
  // Makes the context the calling thread's; every function of the driver needs that.
  void Bind() const { (void)api_->cuCtxSetCurrent(context_); }
  absl::Status Check(CUresult result, const char* what) const {
    return CheckDriver(*api_, result, what);
  }

 private:
  CudaContext(const DriverApi* api, CUdevice device) : api_(api), device_(device) {}

  const DriverApi* api_;
  CUdevice device_;
  CUcontext context_ = nullptr;
  CUstream clock_stream_ = nullptr;
  DriverGraph* capture_ = nullptr;
  bool captures_words_ = true;
};

class DriverEvent : public Event {
 public:
  // `timed`: for elapsed times, else for order alone.
  static absl::StatusOr<std::unique_ptr<DriverEvent>> Create(std::shared_ptr<CudaContext> context,
                                                             bool timed);
  ~DriverEvent() override;
  bool Reached() const override;
  absl::Status Wait(int64_t timeout_us) override;
  CUevent handle() const { return event_; }
  // OK, DeadlineExceeded (not reached), or the device's error.
  absl::Status Query() const;

 private:
  DriverEvent(std::shared_ptr<CudaContext> context, CUevent event)
      : context_(std::move(context)), event_(event) {}

  std::shared_ptr<CudaContext> context_;
  CUevent event_;
};

// Device memory for what a step brings along, with a pinned mirror: filled front to back, emptied
// when the stream is idle.
class UploadArena {
 public:
  explicit UploadArena(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  ~UploadArena();
  absl::StatusOr<const std::byte*> Add(CUstream stream, const void* data, size_t bytes);
  void Empty();

 private:
  struct Chunk {
    std::byte* host = nullptr;
    CUdeviceptr device = 0;
    size_t bytes = 0;
    size_t used = 0;
  };
  absl::Status AddChunk(size_t bytes);

  std::shared_ptr<CudaContext> context_;
  std::vector<Chunk> chunks_;
  size_t current_ = 0;
};

class DriverStream : public CudaStream {
 public:
  static absl::StatusOr<std::unique_ptr<DriverStream>> Create(std::shared_ptr<CudaContext> context,
                                                              bool urgent);
  ~DriverStream() override;

  void Launch(std::function<absl::Status()> work) override;
  void Record(Event& event) override;
  void WaitFor(Event& event) override;
  void Clear(std::byte* data, size_t bytes) override;
  void CopyToHost(void* to, const std::byte* from, size_t bytes) override;
  void Stamp(double* time_us) override;
  absl::Status Synchronize(int64_t timeout_us) override;

  void* handle() const override { return stream_; }
  const std::byte* Upload(const void* data, size_t bytes) override;
  uint64_t generation() const override { return generation_; }
  void CopyFromHost(std::byte* to, const void* from, size_t bytes) override;
  void Fail(const absl::Status& error) override;
  void CheckAfterwards(std::function<absl::Status()> check) override;
  bool WriteWord(uint32_t* word, uint32_t value) override;
  bool WaitWord(uint32_t* word, uint32_t value) override;
  absl::StatusOr<std::unique_ptr<CudaGraph>> Capture(
      std::span<CudaStream* const> others, const std::function<absl::Status()>& queue) override;
  void LaunchGraph(CudaGraph& graph) override;

 private:
  struct HostWork;
  struct PendingStamp {
    CUevent event = nullptr;
    double* time_us = nullptr;
  };

  DriverStream(std::shared_ptr<CudaContext> context, CUstream stream);
  void Keep(CUresult result, const char* what) { Fail(context_->Check(result, what)); }
  bool Failed();
  absl::Status AwaitIdle(int64_t timeout_us);
  void ReadStamps();
  absl::Status TakeError();
  absl::StatusOr<CUevent> NextStampEvent();
  void BeginStamps();
  // The graph that this stream's work goes to instead of the queue, or null.
  DriverGraph* Capturing() const;
  absl::StatusOr<std::unique_ptr<CudaGraph>> CaptureOnce(
      std::span<CudaStream* const> others, const std::function<absl::Status()>& queue);
  bool TookWord(CUresult result, const char* what);

  std::shared_ptr<CudaContext> context_;
  CUstream stream_;
  std::unique_ptr<DriverEvent> idle_;
  UploadArena arena_;
  uint64_t generation_ = 0;
  std::vector<std::unique_ptr<DriverEvent>> stamp_events_;  // the first is the base of the others
  size_t stamps_used_ = 0;                                  // of stamp_events_, without the base
  std::vector<PendingStamp> stamps_;
  double base_us_ = 0;  // time of stamp_events_[0]
  std::vector<std::function<absl::Status()>> checks_;
  std::mutex mutex_;  // also taken on the driver's thread, by Launch's work
  absl::Status first_error_;
};

}  // namespace tandem::gpu_worker::device
