#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/communicator.h"
#include "gpu_worker/device/cuda/cuda_device.h"

// Several NVIDIA GPUs of this host that compute together, through NCCL. No CUDA headers here; a
// build without the CUDA toolkit has these functions, too, and they say so.
namespace tandem::gpu_worker::device {

class CudaGroup {
 public:
  // Unavailable, with the reason: too few GPUs, GPUs of different kinds, no NCCL.
  static absl::Status IsAvailable(int32_t size);
  // GPUs 0 to size - 1 as the driver counts them (CUDA_VISIBLE_DEVICES), each with its
  // communicator.
  static absl::StatusOr<std::unique_ptr<CudaGroup>> Create(int32_t size);
  virtual ~CudaGroup() = default;

  virtual int32_t size() const = 0;
  // Given away once each; must not outlive the group.
  virtual std::unique_ptr<CudaDevice> TakeDevice(int32_t rank) = 0;
  virtual Communicator& communicator(int32_t rank) = 0;

  // Frees every stream that waits for another device; nothing of the group works after that. The
  // first reason stays. Any thread.
  virtual void Abort(const absl::Status& reason) = 0;
  // Not OK: a call or a device of the group failed, or it was aborted. Any thread.
  virtual absl::Status Health() = 0;
  // The same without waiting for calls that stand in the library, whose devices it passes over.
  virtual absl::Status Look() = 0;
};

}  // namespace tandem::gpu_worker::device
