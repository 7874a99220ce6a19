#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"

// An NVIDIA GPU through the driver API. No CUDA headers here; a build without the CUDA toolkit has
// these functions, too, and they say so.
namespace tandem::gpu_worker::device {

// What streams were to do, captured once to be launched as a whole again and again. Not to be
// destroyed while it runs.
class CudaGraph {
 public:
  virtual ~CudaGraph() = default;
};

// Work goes to the driver's queue as it is launched. An error of ours (Launch, Fail,
// CheckAfterwards) does not keep later kernels from running: their results are thrown away with the
// step.
class CudaStream : public Stream {
 public:
  virtual void* handle() const = 0;  // CUstream

  // A copy of the host's `data` in device memory, made in stream order; lasts until the next
  // Synchronize ends. Null after an error, which stays with the stream.
  virtual const std::byte* Upload(const void* data, size_t bytes) = 0;
  // Grows with each Synchronize: what Upload gave in an earlier generation is gone.
  virtual uint64_t generation() const = 0;
  // A copy to device memory from a buffer of AllocateHost.
  virtual void CopyFromHost(std::byte* to, const void* from, size_t bytes) = 0;

  // Keeps the first error for Synchronize.
  virtual void Fail(const absl::Status& error) = 0;
  // Called by the next Synchronize once the stream is idle, in order; errors are the stream's.
  virtual void CheckAfterwards(std::function<absl::Status()> check) = 0;

  // Words of registered host memory, in stream order: a write that everything before it is visible
  // ahead of; a wait until int32(*word - value) >= 0, which does not end by itself. False: the
  // driver has no such operations here.
  virtual bool WriteWord(uint32_t* word, uint32_t value) = 0;
  virtual bool WaitWord(uint32_t* word, uint32_t value) = 0;

  // Runs `queue` on the calling thread while what it queues on this stream and on `others` is kept
  // instead of executed: kernels, copies, words, stamps, and events, by which the others must
  // follow this stream and be followed by it. Launch, Upload and Synchronize do not work meanwhile.
  // Calls `queue` again where the driver takes no words into graphs. Nothing stays queued after an
  // error.
  virtual absl::StatusOr<std::unique_ptr<CudaGraph>> Capture(
      std::span<CudaStream* const> others, const std::function<absl::Status()>& queue) = 0;
  // Stamps go to the addresses that they had in the capture.
  virtual void LaunchGraph(CudaGraph& graph) = 0;
};

struct CudaTraits {
  int32_t num_multiprocessors = 1;
  int32_t compute_capability = 75;  // 10 * major + minor
  int32_t max_shared_bytes_per_block = 48 << 10;
};

struct KernelLaunch {
  const char* name = nullptr;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;
};

class CudaDevice : public Device {
 public:
  virtual const CudaTraits& traits() const = 0;
  // Not OK once a kernel failed: nothing works any more until the process starts anew.
  virtual absl::Status Health() const = 0;
  // Kernels of a fat binary; may be called for several.
  virtual absl::Status LoadKernels(std::span<const std::byte> image) = 0;
  // With one parameter, copied. NotFound: no loaded image has the kernel.
  virtual absl::Status LaunchKernel(const KernelLaunch& launch, void* stream,
                                    const void* params) = 0;
};

// Unavailable, with the reason, where there is no GPU, driver, or no CUDA device in this build.
absl::Status CudaIsAvailable();
// 10 * major + minor.
absl::StatusOr<int32_t> CudaComputeCapability(int ordinal = 0);
absl::StatusOr<std::unique_ptr<CudaDevice>> CreateCudaDevice(int ordinal = 0);

}  // namespace tandem::gpu_worker::device
