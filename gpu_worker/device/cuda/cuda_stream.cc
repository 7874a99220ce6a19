#include "gpu_worker/device/cuda/cuda_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/cuda_graph.h"

namespace tandem::gpu_worker::device {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr size_t kUploadAlignment = 256;
// A waiting host thread looks this often at first, then rarely: a step takes milliseconds.
constexpr int kEagerLooks = 200;
constexpr std::chrono::microseconds kLookPause{50};

CUdeviceptr Address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// Looks until `look` gives something else than DeadlineExceeded or the time is over.
template <typename Look>
absl::Status Poll(int64_t timeout_us, const Look& look) {
  const base::Clock& clock = base::SystemClock();
  const int64_t deadline_us = clock.NowUs() + timeout_us;
  for (int i = 0;; ++i) {
    absl::Status status = look();
    if (!absl::IsDeadlineExceeded(status) || clock.NowUs() >= deadline_us) {
      return status;
    }
    if (i < kEagerLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kLookPause);
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<CudaContext>> CudaContext::Create(int ordinal) {
  TANDEM_ASSIGN_OR_RETURN(const DriverApi* api, LoadDriver());
  CUdevice device = 0;
  TANDEM_RETURN_IF_ERROR(CheckDriver(*api, api->cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  std::shared_ptr<CudaContext> context(new CudaContext(api, device));
  TANDEM_RETURN_IF_ERROR(context->Check(api->cuDevicePrimaryCtxRetain(&context->context_, device),
                                        "opening the CUDA device"));
  context->Bind();
  TANDEM_RETURN_IF_ERROR(context->Check(
      api->cuStreamCreateWithPriority(&context->clock_stream_, CU_STREAM_NON_BLOCKING, 0),
      "cuStreamCreateWithPriority"));
  return context;
}

CudaContext::~CudaContext() {
  if (context_ != nullptr) {
    Bind();
    if (clock_stream_ != nullptr) {
      (void)api_->cuStreamDestroy(clock_stream_);
    }
    (void)api_->cuDevicePrimaryCtxRelease(device_);
  }
}

RegisteredRanges& RegisteredRanges::OfProcess() {
  static auto* ranges = new RegisteredRanges;  // regions may be left to the process's end
  return *ranges;
}

void RegisteredRanges::Add(const void* begin) {
  const std::lock_guard lock(mutex_);
  begins_.insert(reinterpret_cast<uintptr_t>(begin));
}

void RegisteredRanges::Remove(const void* begin) {
  const std::lock_guard lock(mutex_);
  begins_.erase(reinterpret_cast<uintptr_t>(begin));
}

size_t RegisteredRanges::InOne(const void* host, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(host);
  const std::lock_guard lock(mutex_);
  const auto next = begins_.upper_bound(address);
  return next == begins_.end() ? bytes : std::min<size_t>(bytes, *next - address);
}

absl::StatusOr<std::unique_ptr<DriverEvent>> DriverEvent::Create(
    std::shared_ptr<CudaContext> context, bool timed) {
  context->Bind();
  CUevent event = nullptr;
  const unsigned flags = timed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  TANDEM_RETURN_IF_ERROR(
      context->Check(context->api().cuEventCreate(&event, flags), "cuEventCreate"));
  return std::unique_ptr<DriverEvent>(new DriverEvent(std::move(context), event));
}

DriverEvent::~DriverEvent() {
  context_->Bind();
  (void)context_->api().cuEventDestroy(event_);
}

absl::Status DriverEvent::Query() const {
  context_->Bind();
  const CUresult result = context_->api().cuEventQuery(event_);
  return result == CUDA_ERROR_NOT_READY ? absl::DeadlineExceededError("event not reached in time")
                                        : context_->Check(result, "the CUDA device");
}

bool DriverEvent::Reached() const { return !absl::IsDeadlineExceeded(Query()); }

absl::Status DriverEvent::Wait(int64_t timeout_us) {
  return Poll(timeout_us, [this] { return Query(); });
}

UploadArena::~UploadArena() {
  context_->Bind();
  for (const Chunk& chunk : chunks_) {
    (void)context_->api().cuMemFreeHost(chunk.host);
    (void)context_->api().cuMemFree(chunk.device);
  }
}

absl::Status UploadArena::AddChunk(size_t bytes) {
  Chunk chunk;
  chunk.bytes = std::max(bytes, kChunkBytes);
  void* host = nullptr;
  TANDEM_RETURN_IF_ERROR(
      context_->Check(context_->api().cuMemHostAlloc(&host, chunk.bytes, CU_MEMHOSTALLOC_PORTABLE),
                      "pinned memory for a step's tables"));
  chunk.host = static_cast<std::byte*>(host);
  absl::Status allocated = context_->Check(context_->api().cuMemAlloc(&chunk.device, chunk.bytes),
                                           "memory for a step's tables");
  if (!allocated.ok()) {
    (void)context_->api().cuMemFreeHost(host);
    return allocated;
  }
  chunks_.push_back(chunk);
  return absl::OkStatus();
}

absl::StatusOr<const std::byte*> UploadArena::Add(CUstream stream, const void* data, size_t bytes) {
  while (current_ < chunks_.size() && chunks_[current_].used + bytes > chunks_[current_].bytes) {
    ++current_;
  }
  if (current_ == chunks_.size()) {
    TANDEM_RETURN_IF_ERROR(AddChunk(bytes));
  }
  Chunk& chunk = chunks_[current_];
  const size_t at = chunk.used;
  std::memcpy(chunk.host + at, data, bytes);
  TANDEM_RETURN_IF_ERROR(context_->Check(
      context_->api().cuMemcpyHtoDAsync(chunk.device + at, chunk.host + at, bytes, stream),
      "a step's tables"));
  chunk.used = (at + bytes + kUploadAlignment - 1) / kUploadAlignment * kUploadAlignment;
  return reinterpret_cast<const std::byte*>(chunk.device + at);
}

void UploadArena::Empty() {
  for (Chunk& chunk : chunks_) {
    chunk.used = 0;
  }
  current_ = 0;
}

absl::StatusOr<std::unique_ptr<DriverStream>> DriverStream::Create(
    std::shared_ptr<CudaContext> context, bool urgent) {
  context->Bind();
  int least = 0;
  int greatest = 0;
  const DriverApi& api = context->api();
  TANDEM_RETURN_IF_ERROR(context->Check(api.cuCtxGetStreamPriorityRange(&least, &greatest),
                                        "cuCtxGetStreamPriorityRange"));
  CUstream handle = nullptr;
  TANDEM_RETURN_IF_ERROR(context->Check(
      api.cuStreamCreateWithPriority(&handle, CU_STREAM_NON_BLOCKING, urgent ? greatest : least),
      "cuStreamCreateWithPriority"));
  std::unique_ptr<DriverStream> stream(new DriverStream(context, handle));
  TANDEM_ASSIGN_OR_RETURN(stream->idle_, DriverEvent::Create(std::move(context), false));
  return stream;
}

DriverStream::DriverStream(std::shared_ptr<CudaContext> context, CUstream stream)
    : context_(context), stream_(stream), arena_(std::move(context)) {}

DriverStream::~DriverStream() {
  context_->Bind();
  (void)context_->api().cuStreamSynchronize(stream_);
  (void)context_->api().cuStreamDestroy(stream_);
}

struct DriverStream::HostWork {
  DriverStream* stream;
  std::function<absl::Status()> work;
};

void DriverStream::Launch(std::function<absl::Status()> work) {
  context_->Bind();
  if (Capturing() != nullptr) {
    Fail(absl::InternalError("host work in a CUDA graph"));
    return;
  }
  auto* host_work = new HostWork{this, std::move(work)};
  const auto run = [](void* data) {
    const std::unique_ptr<HostWork> taken(static_cast<HostWork*>(data));
    if (!taken->stream->Failed()) {
      taken->stream->Fail(taken->work());
    }
  };
  const CUresult result = context_->api().cuLaunchHostFunc(stream_, run, host_work);
  if (result != CUDA_SUCCESS) {
    delete host_work;
    Keep(result, "cuLaunchHostFunc");
  }
}

void DriverStream::Record(Event& event) {
  context_->Bind();
  Keep(context_->api().cuEventRecord(static_cast<DriverEvent&>(event).handle(), stream_),
       "cuEventRecord");
}

void DriverStream::WaitFor(Event& event) {
  context_->Bind();
  Keep(context_->api().cuStreamWaitEvent(stream_, static_cast<DriverEvent&>(event).handle(), 0),
       "cuStreamWaitEvent");
}

void DriverStream::Clear(std::byte* data, size_t bytes) {
  context_->Bind();
  Keep(context_->api().cuMemsetD8Async(Address(data), 0, bytes, stream_), "cuMemsetD8Async");
}

void DriverStream::CopyToHost(void* to, const std::byte* from, size_t bytes) {
  context_->Bind();
  auto* host = static_cast<std::byte*>(to);
  for (size_t done = 0; done < bytes;) {
    const size_t piece = RegisteredRanges::OfProcess().InOne(host + done, bytes - done);
    Keep(context_->api().cuMemcpyDtoHAsync(host + done, Address(from + done), piece, stream_),
         "cuMemcpyDtoHAsync");
    done += piece;
  }
}

void DriverStream::CopyFromHost(std::byte* to, const void* from, size_t bytes) {
  context_->Bind();
  const auto* host = static_cast<const std::byte*>(from);
  for (size_t done = 0; done < bytes;) {
    const size_t piece = RegisteredRanges::OfProcess().InOne(host + done, bytes - done);
    Keep(context_->api().cuMemcpyHtoDAsync(Address(to + done), host + done, piece, stream_),
         "cuMemcpyHtoDAsync");
    done += piece;
  }
}

const std::byte* DriverStream::Upload(const void* data, size_t bytes) {
  context_->Bind();
  if (Capturing() != nullptr) {
    Fail(absl::InternalError("a table in a CUDA graph that is not at a fixed place"));
    return nullptr;
  }
  const absl::StatusOr<const std::byte*> uploaded = arena_.Add(stream_, data, bytes);
  if (!uploaded.ok()) {
    Fail(uploaded.status());
    return nullptr;
  }
  return *uploaded;
}

absl::StatusOr<CUevent> DriverStream::NextStampEvent() {
  const size_t next = stamps_used_ + 1;
  while (stamp_events_.size() <= next) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<DriverEvent> event,
                            DriverEvent::Create(context_, true));
    stamp_events_.push_back(std::move(event));
  }
  ++stamps_used_;
  return stamp_events_[next]->handle();
}

// Times count from an event of a stream that is always idle, which is passed as it is recorded.
void DriverStream::BeginStamps() {
  if (stamps_.empty()) {
    Keep(context_->api().cuEventRecord(stamp_events_[0]->handle(), context_->clock_stream()),
         "cuEventRecord");
    base_us_ = static_cast<double>(base::SystemClock().NowUs());
  }
}

void DriverStream::Stamp(double* time_us) {
  context_->Bind();
  if (DriverGraph* graph = Capturing()) {
    Fail(graph->Stamp(stream_, time_us));
    return;
  }
  const absl::StatusOr<CUevent> event = NextStampEvent();
  if (!event.ok()) {
    Fail(event.status());
    return;
  }
  BeginStamps();
  Keep(context_->api().cuEventRecord(*event, stream_), "cuEventRecord");
  stamps_.push_back({*event, time_us});
}

void DriverStream::ReadStamps() {
  for (const PendingStamp& stamp : stamps_) {
    float elapsed_ms = 0;
    const CUresult result =
        context_->api().cuEventElapsedTime(&elapsed_ms, stamp_events_[0]->handle(), stamp.event);
    Keep(result, "cuEventElapsedTime");
    *stamp.time_us = base_us_ + 1000.0 * static_cast<double>(elapsed_ms);
  }
  stamps_.clear();
  stamps_used_ = 0;
}

absl::Status DriverStream::AwaitIdle(int64_t timeout_us) {
  context_->Bind();
  TANDEM_RETURN_IF_ERROR(
      context_->Check(context_->api().cuEventRecord(idle_->handle(), stream_), "the CUDA device"));
  return Poll(timeout_us, [this] { return idle_->Query(); });
}

absl::Status DriverStream::Synchronize(int64_t timeout_us) {
  const absl::Status idle = AwaitIdle(timeout_us);
  if (absl::IsDeadlineExceeded(idle)) {
    return absl::DeadlineExceededError("the stream is still running");
  }
  Fail(idle);
  ReadStamps();
  for (const auto& check : std::exchange(checks_, {})) {
    Fail(check());
  }
  arena_.Empty();
  ++generation_;
  return TakeError();
}

void DriverStream::Fail(const absl::Status& error) {
  if (!error.ok()) {
    const std::lock_guard lock(mutex_);
    first_error_.Update(error);
  }
}

bool DriverStream::Failed() {
  const std::lock_guard lock(mutex_);
  return !first_error_.ok();
}

absl::Status DriverStream::TakeError() {
  const std::lock_guard lock(mutex_);
  return std::exchange(first_error_, absl::OkStatus());
}

void DriverStream::CheckAfterwards(std::function<absl::Status()> check) {
  checks_.push_back(std::move(check));
}

bool DriverStream::TookWord(CUresult result, const char* what) {
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    return false;
  }
  if (result != CUDA_SUCCESS && Capturing() != nullptr) {
    context_->SetCapturesNoWords();  // the capture may be lost: Capture tries again without
    return false;
  }
  Keep(result, what);
  return true;
}

bool DriverStream::WriteWord(uint32_t* word, uint32_t value) {
  context_->Bind();
  if (Capturing() != nullptr && !context_->captures_words()) {
    return false;
  }
  return TookWord(context_->api().cuStreamWriteValue32(stream_, Address(word), value,
                                                       CU_STREAM_WRITE_VALUE_DEFAULT),
                  "cuStreamWriteValue32");
}

bool DriverStream::WaitWord(uint32_t* word, uint32_t value) {
  context_->Bind();
  if (Capturing() != nullptr && !context_->captures_words()) {
    return false;
  }
  return TookWord(
      context_->api().cuStreamWaitValue32(stream_, Address(word), value, CU_STREAM_WAIT_VALUE_GEQ),
      "cuStreamWaitValue32");
}

}  // namespace tandem::gpu_worker::device
