#include "gpu_worker/device/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/cuda_matmul.h"
#include "gpu_worker/device/cuda/cuda_stream.h"

namespace tandem::gpu_worker::device {
namespace {

constexpr int32_t kOldestCapability = 75;
constexpr size_t kUploadBytes = size_t{1} << 20;
constexpr int64_t kUploadTimeoutUs = 60'000'000;
constexpr size_t kRegistrationBytes = size_t{64} << 30;  // more in one call takes too long

class DeviceBuffer : public Buffer {
 public:
  DeviceBuffer(std::shared_ptr<CudaContext> context, CUdeviceptr data, size_t bytes)
      : context_(std::move(context)), data_(data), bytes_(bytes) {}
  ~DeviceBuffer() override {
    context_->Bind();
    (void)context_->api().cuMemFree(data_);
  }
  std::byte* data() const override { return reinterpret_cast<std::byte*>(data_); }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<CudaContext> context_;
  CUdeviceptr data_;
  size_t bytes_;
};

class PinnedBuffer : public Buffer {
 public:
  PinnedBuffer(std::shared_ptr<CudaContext> context, void* data, size_t bytes)
      : context_(std::move(context)), data_(data), bytes_(bytes) {}
  ~PinnedBuffer() override {
    context_->Bind();
    (void)context_->api().cuMemFreeHost(data_);
  }
  std::byte* data() const override { return static_cast<std::byte*>(data_); }
  size_t bytes() const override { return bytes_; }

 private:
  std::shared_ptr<CudaContext> context_;
  void* data_;
  size_t bytes_;
};

class HostRegistration : public Registration {
 public:
  explicit HostRegistration(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  ~HostRegistration() override {
    context_->Bind();
    for (std::byte* part : parts_) {
      RegisteredRanges::OfProcess().Remove(part);
      (void)context_->api().cuMemHostUnregister(part);
    }
  }
  absl::Status Add(std::byte* data, size_t bytes) {
    TANDEM_RETURN_IF_ERROR(context_->Check(
        context_->api().cuMemHostRegister(
            data, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
        "registering the shared region"));
    RegisteredRanges::OfProcess().Add(data);
    parts_.push_back(data);
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<CudaContext> context_;
  std::vector<std::byte*> parts_;
};

absl::StatusOr<int> ReadAttribute(const DriverApi& api, CUdevice device,
                                  CUdevice_attribute attribute) {
  int value = 0;
  TANDEM_RETURN_IF_ERROR(CheckDriver(api, api.cuDeviceGetAttribute(&value, attribute, device),
                                     "cuDeviceGetAttribute"));
  return value;
}

absl::StatusOr<CudaTraits> ReadTraits(const DriverApi& api, CUdevice device) {
  CudaTraits traits;
  TANDEM_ASSIGN_OR_RETURN(const int major,
                          ReadAttribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  TANDEM_ASSIGN_OR_RETURN(const int minor,
                          ReadAttribute(api, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
  traits.compute_capability = 10 * major + minor;
  TANDEM_ASSIGN_OR_RETURN(traits.num_multiprocessors,
                          ReadAttribute(api, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  TANDEM_ASSIGN_OR_RETURN(
      traits.max_shared_bytes_per_block,
      ReadAttribute(api, device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN));
  return traits;
}

// Whether the device has what we ask for.
absl::Status CheckSupported(const DriverApi& api, CUdevice device) {
  TANDEM_ASSIGN_OR_RETURN(const CudaTraits traits, ReadTraits(api, device));
  if (traits.compute_capability < kOldestCapability) {
    return absl::UnavailableError(
        absl::StrCat("the GPU has compute capability ", traits.compute_capability / 10, ".",
                     traits.compute_capability % 10, "; the oldest supported is ",
                     kOldestCapability / 10, ".", kOldestCapability % 10));
  }
  TANDEM_ASSIGN_OR_RETURN(
      const int same_address,
      ReadAttribute(api, device, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM));
  return same_address != 0 ? absl::OkStatus()
                           : absl::UnavailableError(
                                 "the GPU cannot reach registered host memory at the host's "
                                 "addresses");
}

class DriverDevice : public CudaDevice {
 public:
  explicit DriverDevice(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  ~DriverDevice() override {
    context_->Bind();
    for (const CUmodule module : modules_) {
      (void)context_->api().cuModuleUnload(module);
    }
  }

  absl::Status Init() {
    char name[128] = {};
    TANDEM_RETURN_IF_ERROR(
        context_->Check(context_->api().cuDeviceGetName(name, sizeof(name) - 1, context_->device()),
                        "cuDeviceGetName"));
    name_ = absl::StrCat("cuda: ", name);
    TANDEM_RETURN_IF_ERROR(CheckSupported(context_->api(), context_->device()));
    TANDEM_ASSIGN_OR_RETURN(traits_, ReadTraits(context_->api(), context_->device()));
    return absl::OkStatus();
  }

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  std::string_view name() const override { return name_; }
  bool has_copy_engine() const override { return true; }
  const CudaTraits& traits() const override { return traits_; }

  absl::Status Health() const override {
    context_->Bind();
    size_t free = 0;
    size_t total = 0;
    return context_->Check(context_->api().cuMemGetInfo(&free, &total), "the CUDA device");
  }

  MemoryInfo memory() const override {
    context_->Bind();
    size_t free = 0;
    size_t total = 0;
    (void)context_->api().cuMemGetInfo(&free, &total);
    return {free, total};
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes, const char* what) override {
    context_->Bind();
    CUdeviceptr data = 0;
    const CUresult result = context_->api().cuMemAlloc(&data, std::max(bytes, size_t{1}));
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      const MemoryInfo info = memory();
      return absl::ResourceExhaustedError(
          absl::StrCat(what, ": ", bytes, " bytes do not fit; ", name_, " has ", info.total_bytes,
                       " bytes, ", info.free_bytes,
                       " of them free; lower --max-num-batched-tokens, --max-num-seqs or "
                       "--gpu-memory-utilization, or take a smaller model"));
    }
    TANDEM_RETURN_IF_ERROR(context_->Check(result, what));
    return std::make_unique<DeviceBuffer>(context_, data, bytes);
  }

  absl::StatusOr<std::unique_ptr<Buffer>> AllocateHost(size_t bytes, const char* what) override {
    context_->Bind();
    void* data = nullptr;
    TANDEM_RETURN_IF_ERROR(context_->Check(
        context_->api().cuMemHostAlloc(&data, std::max(bytes, size_t{1}), CU_MEMHOSTALLOC_PORTABLE),
        what));
    return std::make_unique<PinnedBuffer>(context_, data, bytes);
  }

  // In pieces through pinned memory.
  absl::Status Upload(std::byte* to, const void* from, size_t bytes) override {
    const std::lock_guard lock(upload_mutex_);
    if (upload_stream_ == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(upload_memory_, AllocateHost(kUploadBytes, "pinned memory"));
      TANDEM_ASSIGN_OR_RETURN(upload_stream_, DriverStream::Create(context_, false));
    }
    for (size_t done = 0; done < bytes; done += kUploadBytes) {
      const size_t piece = std::min(kUploadBytes, bytes - done);
      std::memcpy(upload_memory_->data(), static_cast<const std::byte*>(from) + done, piece);
      upload_stream_->CopyFromHost(to + done, upload_memory_->data(), piece);
      TANDEM_RETURN_IF_ERROR(upload_stream_->Synchronize(kUploadTimeoutUs));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Registration>> Register(std::byte* data, size_t bytes) override {
    context_->Bind();
    auto registration = std::make_unique<HostRegistration>(context_);
    for (size_t done = 0; done < bytes; done += kRegistrationBytes) {
      TANDEM_RETURN_IF_ERROR(
          registration->Add(data + done, std::min(kRegistrationBytes, bytes - done)));
    }
    return registration;
  }

  std::unique_ptr<Stream> CreateComputeStream() override { return CreateStream(false); }
  std::unique_ptr<Stream> CreateTransferStream() override { return CreateStream(true); }
  std::unique_ptr<Event> CreateEvent() override {
    absl::StatusOr<std::unique_ptr<DriverEvent>> event = DriverEvent::Create(context_, false);
    TANDEM_CHECK(event.ok());
    return *std::move(event);
  }

  absl::Status LoadKernels(std::span<const std::byte> image) override {
    context_->Bind();
    CUmodule module = nullptr;
    const absl::Status loaded = context_->Check(
        context_->api().cuModuleLoadData(&module, image.data()), "loading the GPU kernels");
    if (!loaded.ok()) {
      int version = 0;
      (void)context_->api().cuDriverGetVersion(&version);
      return absl::UnavailableError(
          absl::StrCat(loaded.message(), "; the driver is of CUDA ", version / 1000, ".",
                       version % 1000 / 10, ", this build's kernels are of CUDA ",
                       CUDA_VERSION / 1000, ".", CUDA_VERSION % 1000 / 10));
    }
    modules_.push_back(module);
    return absl::OkStatus();
  }

  absl::Status LaunchKernel(const KernelLaunch& launch, void* stream, const void* params) override {
    context_->Bind();
    TANDEM_ASSIGN_OR_RETURN(const CUfunction function, Find(launch));
    void* parameters[] = {const_cast<void*>(params)};
    return context_->Check(
        context_->api().cuLaunchKernel(function, launch.grid[0], launch.grid[1], launch.grid[2],
                                       launch.block[0], launch.block[1], launch.block[2],
                                       launch.shared_bytes, static_cast<CUstream>(stream),
                                       parameters, nullptr),
        launch.name);
  }

 private:
  struct Kernel {
    CUfunction function = nullptr;
    uint32_t shared_bytes = 48 << 10;  // what it may have without asking for more
  };

  std::unique_ptr<Stream> CreateStream(bool urgent) {
    absl::StatusOr<std::unique_ptr<DriverStream>> stream = DriverStream::Create(context_, urgent);
    TANDEM_CHECK(stream.ok());
    return *std::move(stream);
  }

  absl::StatusOr<CUfunction> Find(const KernelLaunch& launch) {
    const std::lock_guard lock(kernels_mutex_);
    Kernel& kernel = kernels_[launch.name];
    for (size_t i = 0; kernel.function == nullptr && i < modules_.size(); ++i) {
      if (context_->api().cuModuleGetFunction(&kernel.function, modules_[i], launch.name) !=
          CUDA_SUCCESS) {
        kernel.function = nullptr;
      }
    }
    if (kernel.function == nullptr) {
      return absl::NotFoundError(absl::StrCat("this build has no GPU kernel ", launch.name));
    }
    if (launch.shared_bytes > kernel.shared_bytes) {
      TANDEM_RETURN_IF_ERROR(context_->Check(
          context_->api().cuFuncSetAttribute(kernel.function,
                                             CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                             static_cast<int>(launch.shared_bytes)),
          launch.name));
      kernel.shared_bytes = launch.shared_bytes;
    }
    return kernel.function;
  }

  std::shared_ptr<CudaContext> context_;
  std::string name_;
  CudaTraits traits_;
  std::vector<CUmodule> modules_;
  std::mutex kernels_mutex_;
  std::map<std::string, Kernel, std::less<>> kernels_;
  std::mutex upload_mutex_;
  std::unique_ptr<Buffer> upload_memory_;
  std::unique_ptr<DriverStream> upload_stream_;
};

}  // namespace

absl::Status CudaIsAvailable() {
  TANDEM_ASSIGN_OR_RETURN(const DriverApi* api, LoadDriver());
  CUdevice device = 0;
  TANDEM_RETURN_IF_ERROR(CheckDriver(*api, api->cuDeviceGet(&device, 0), "cuDeviceGet"));
  TANDEM_RETURN_IF_ERROR(CheckSupported(*api, device));
  return CudaMatmul::Find();
}

absl::StatusOr<int32_t> CudaComputeCapability(int ordinal) {
  TANDEM_ASSIGN_OR_RETURN(const DriverApi* api, LoadDriver());
  CUdevice device = 0;
  TANDEM_RETURN_IF_ERROR(CheckDriver(*api, api->cuDeviceGet(&device, ordinal), "cuDeviceGet"));
  TANDEM_ASSIGN_OR_RETURN(const CudaTraits traits, ReadTraits(*api, device));
  return traits.compute_capability;
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CreateCudaDevice(int ordinal) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<CudaContext> context, CudaContext::Create(ordinal));
  auto device = std::make_unique<DriverDevice>(std::move(context));
  TANDEM_RETURN_IF_ERROR(device->Init());
  return device;
}

}  // namespace tandem::gpu_worker::device
