#include "gpu_worker/device/cuda/cuda_group.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/driver_api.h"
#include "gpu_worker/device/cuda/nccl_api.h"

namespace tandem::gpu_worker::device {
namespace {

// A call that stands on the host, waiting for a device that will not come, is aborted all the same.
constexpr int64_t kAbortLockUs = 2'000'000;
constexpr std::chrono::milliseconds kLockPause{1};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(const NcclApi* api, NcclComm comm, int32_t rank, int32_t size)
      : api_(api), comm_(comm), rank_(rank), size_(size) {}
  ~NcclCommunicator() override {
    if (const NcclComm comm = comm_.load(); comm != nullptr) {
      (void)api_->ncclCommDestroy(comm);
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }

  void AllReduceSum(Stream& stream, float* data, int64_t count) override {
    auto& cuda_stream = static_cast<CudaStream&>(stream);
    Call(cuda_stream, "ncclAllReduce", [&](NcclComm comm, NcclStream handle) {
      return api_->ncclAllReduce(data, data, static_cast<size_t>(count), kNcclFloat32, kNcclSum,
                                 comm, handle);
    });
  }

  // A call per row, which puts the parts where they belong; one group is one launch.
  void AllGatherRows(Stream& stream, const float* in, int64_t rows, int64_t width,
                     float* out) override {
    auto& cuda_stream = static_cast<CudaStream&>(stream);
    Call(cuda_stream, "ncclAllGather", [&](NcclComm comm, NcclStream handle) {
      NcclResult result = api_->ncclGroupStart();
      for (int64_t row = 0; row < rows && result == kNcclSuccess; ++row) {
        result = api_->ncclAllGather(in + row * width, out + row * size_ * width,
                                     static_cast<size_t>(width), kNcclFloat32, comm, handle);
      }
      const NcclResult ended = api_->ncclGroupEnd();
      return result == kNcclSuccess ? ended : result;
    });
  }

  absl::Status Health() { return HealthWith(std::unique_lock(mutex_)); }
  absl::Status Look() { return HealthWith(std::unique_lock(mutex_, std::try_to_lock)); }

  void Abort(const absl::Status& reason) {
    std::unique_lock lock(mutex_, std::try_to_lock);
    const base::Clock& clock = base::SystemClock();
    const int64_t deadline_us = clock.NowUs() + kAbortLockUs;
    while (!lock.owns_lock() && clock.NowUs() < deadline_us) {
      std::this_thread::sleep_for(kLockPause);
      (void)lock.try_lock();
    }
    if (NcclComm comm = comm_.exchange(nullptr); comm != nullptr) {
      (void)FirstErrorAfter(reason);
      (void)api_->ncclCommAbort(comm);
    }
  }

 private:
  absl::Status HealthWith(const std::unique_lock<std::mutex>& lock) {
    if (!lock.owns_lock()) {
      return absl::OkStatus();
    }
    absl::Status status = FirstErrorAfter(absl::OkStatus());
    const NcclComm comm = comm_.load();
    if (!status.ok() || comm == nullptr) {
      return status;
    }
    NcclResult error = kNcclSuccess;
    status = CheckNccl(*api_, api_->ncclCommGetAsyncError(comm, &error), "NCCL");
    if (error != kNcclInProgress) {
      status.Update(CheckNccl(*api_, error, "a GPU of the group"));
    }
    return FirstErrorAfter(status);
  }

  template <typename Function>
  void Call(CudaStream& stream, const char* what, const Function& function) {
    const std::lock_guard lock(mutex_);
    absl::Status status;
    if (const NcclComm comm = comm_.load(); comm != nullptr) {
      status = CheckNccl(*api_, function(comm, stream.handle()), what);
    }
    stream.Fail(FirstErrorAfter(status));
  }

  absl::Status FirstErrorAfter(const absl::Status& status) {
    const std::lock_guard lock(error_mutex_);
    first_error_.Update(status);
    return first_error_;
  }

  const NcclApi* api_;
  std::mutex mutex_;            // one call at a time; Abort goes on without it in the end
  std::atomic<NcclComm> comm_;  // null: aborted
  const int32_t rank_;
  const int32_t size_;
  std::mutex error_mutex_;
  absl::Status first_error_;  // guarded by error_mutex_
};

class NcclGroup : public CudaGroup {
 public:
  explicit NcclGroup(const NcclApi* api) : api_(api) {}

  absl::Status Init(int32_t size) {
    for (int32_t rank = 0; rank < size; ++rank) {
      TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CudaDevice> device, CreateCudaDevice(rank));
      devices_.push_back(std::move(device));
    }
    std::vector<NcclComm> comms(static_cast<size_t>(size));
    std::vector<int> ordinals(static_cast<size_t>(size));
    std::iota(ordinals.begin(), ordinals.end(), 0);
    TANDEM_RETURN_IF_ERROR(CheckNccl(
        *api_, api_->ncclCommInitAll(comms.data(), size, ordinals.data()), "ncclCommInitAll"));
    for (int32_t rank = 0; rank < size; ++rank) {
      communicators_.push_back(
          std::make_unique<NcclCommunicator>(api_, comms[static_cast<size_t>(rank)], rank, size));
    }
    return absl::OkStatus();
  }

  int32_t size() const override { return static_cast<int32_t>(communicators_.size()); }
  std::unique_ptr<CudaDevice> TakeDevice(int32_t rank) override {
    return std::move(devices_[static_cast<size_t>(rank)]);
  }
  Communicator& communicator(int32_t rank) override {
    return *communicators_[static_cast<size_t>(rank)];
  }

  void Abort(const absl::Status& reason) override {
    for (const auto& communicator : communicators_) {
      communicator->Abort(reason);
    }
  }

  absl::Status Health() override {
    absl::Status health;
    for (const auto& communicator : communicators_) {
      health.Update(communicator->Health());
    }
    return health;
  }
  absl::Status Look() override {
    absl::Status health;
    for (const auto& communicator : communicators_) {
      health.Update(communicator->Look());
    }
    return health;
  }

 private:
  const NcclApi* api_;
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::vector<std::unique_ptr<NcclCommunicator>> communicators_;
};

}  // namespace

absl::Status CudaGroup::IsAvailable(int32_t size) {
  TANDEM_ASSIGN_OR_RETURN(const DriverApi* api, LoadDriver());
  int count = 0;
  TANDEM_RETURN_IF_ERROR(CheckDriver(*api, api->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  if (count < size) {
    return absl::UnavailableError(
        absl::StrCat("the CUDA driver sees ", count, count == 1 ? " device" : " devices"));
  }
  TANDEM_ASSIGN_OR_RETURN(const int32_t first, CudaComputeCapability(0));
  for (int32_t ordinal = 1; ordinal < size; ++ordinal) {
    TANDEM_ASSIGN_OR_RETURN(const int32_t other, CudaComputeCapability(ordinal));
    if (other != first) {
      return absl::UnavailableError(absl::StrCat("GPU 0 has compute capability ", first / 10, ".",
                                                 first % 10, " and GPU ", ordinal, " ", other / 10,
                                                 ".", other % 10, "; GPUs of one kind are needed"));
    }
  }
  return LoadNccl().status();
}

absl::StatusOr<std::unique_ptr<CudaGroup>> CudaGroup::Create(int32_t size) {
  TANDEM_RETURN_IF_ERROR(IsAvailable(size));
  TANDEM_ASSIGN_OR_RETURN(const NcclApi* api, LoadNccl());
  auto group = std::make_unique<NcclGroup>(api);
  TANDEM_RETURN_IF_ERROR(group->Init(size));
  return group;
}

}  // namespace tandem::gpu_worker::device
