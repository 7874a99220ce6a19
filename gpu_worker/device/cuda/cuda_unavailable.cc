// Instead of the CUDA device in builds without the CUDA toolkit.
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_group.h"
#include "gpu_worker/device/cuda/cuda_matmul.h"

namespace tandem::gpu_worker::device {

absl::Status CudaIsAvailable() {
  return absl::UnavailableError(
      "this build has no CUDA device: it was configured without the CUDA toolkit (nvcc)");
}

absl::StatusOr<int32_t> CudaComputeCapability(int /*ordinal*/) { return CudaIsAvailable(); }

absl::StatusOr<std::unique_ptr<CudaDevice>> CreateCudaDevice(int /*ordinal*/) {
  return CudaIsAvailable();
}

absl::Status CudaGroup::IsAvailable(int32_t /*size*/) { return CudaIsAvailable(); }

absl::StatusOr<std::unique_ptr<CudaGroup>> CudaGroup::Create(int32_t /*size*/) {
  return CudaIsAvailable();
}

absl::Status CudaMatmul::Find() { return CudaIsAvailable(); }

absl::StatusOr<std::unique_ptr<CudaMatmul>> CudaMatmul::Create(CudaDevice& /*device*/) {
  return CudaIsAvailable();
}

}  // namespace tandem::gpu_worker::device
