#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/ops/cuda/kernel_params.h"

// Launchers of our own kernels: they choose kernel, grid and shared memory, and queue it. No CUDA
// headers here: how a kernel is found and queued is the launcher object's business (the driver, or
// the CPU in tests). Kernels are extern "C" and named as in kKernelNames.
namespace tandem::gpu_worker::ops::cuda {

// A CUstream.
using StreamHandle = void*;

struct LaunchShape {
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t shared_bytes = 0;  // dynamic; above 48 KiB the launcher object raises the kernel's limit
};

// What launchers choose by.
struct DeviceTraits {
  int32_t num_multiprocessors = 1;
  int32_t compute_capability = 75;                // 10 * major + minor
  int32_t max_shared_bytes_per_block = 48 << 10;  // with opt-in
};

class KernelLauncher {
 public:
  virtual ~KernelLauncher() = default;
  virtual const DeviceTraits& traits() const = 0;
  // Queues `kernel` with its one parameter, `params_bytes` of which are copied before this returns.
  // NotFound: there is no kernel of that name in this build.
  virtual absl::Status Launch(const char* kernel, const LaunchShape& shape, StreamHandle stream,
                              const void* params, size_t params_bytes) = 0;
};

// Every launcher: InvalidArgument names what of the parameters is outside of the kernel's limits
// (below); zero rows queue nothing. `compute` is kFloat32, kBFloat16 or kFloat16.

// width any.
absl::Status Embed(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                   const EmbedParams& params);
// width any.
absl::Status RmsNorm(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                     const RmsNormParams& params);
// head_dim even, at most 256.
absl::Status Rope(KernelLauncher& launcher, StreamHandle stream, const RopeParams& params);
absl::Status SiluMul(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                     const SiluMulParams& params);
absl::Status AddBias(KernelLauncher& launcher, StreamHandle stream, const AddBiasParams& params);

// Pools: head_dim a multiple of 16, at most 256; block_tokens 16, 32, 64 or 128; num_q_heads a
// multiple of num_kv_heads. A device pool is kFloat32 for kFloat32 compute, else kBFloat16.
absl::Status StoreKv(KernelLauncher& launcher, StreamHandle stream, const StoreKvParams& params);
absl::Status PrefillAttention(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                              const AttentionParams& params);
// Runs of one row. With scratch the context is split, as far as scratch_floats allows, so that few
// rows still fill the device; a second kernel merges.
absl::Status DecodeAttention(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                             const AttentionParams& params);
// Floats of scratch with which DecodeAttention can split as it likes.
int64_t DecodeScratchFloats(const DeviceTraits& traits, int32_t num_q_heads, int32_t head_dim);
absl::Status CopyKv(KernelLauncher& launcher, StreamHandle stream, const CopyKvParams& params);

absl::Status SendRows(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                      const SendRowsParams& params);
absl::Status JoinRows(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                      const JoinRowsParams& params);
absl::Status SignalWord(KernelLauncher& launcher, StreamHandle stream, const WordParams& params);
absl::Status WaitWord(KernelLauncher& launcher, StreamHandle stream, const WordParams& params);

// vocab up to 2^22. Chooses what gpu_worker/ops/sampling.h chooses, with the same random numbers,
// but for draws that fall on a border within rounding (weights below 2^-40 of the best token's
// count as 0).
absl::Status Sample(KernelLauncher& launcher, StreamHandle stream, const SampleParams& params);
// max_top up to 1024.
absl::Status Logprobs(KernelLauncher& launcher, StreamHandle stream, const LogprobsParams& params);
absl::Status Argmax(KernelLauncher& launcher, StreamHandle stream, const ArgmaxParams& params);

}  // namespace tandem::gpu_worker::ops::cuda
