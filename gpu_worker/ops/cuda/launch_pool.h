#pragma once

#include "absl/status/status.h"
#include "gpu_worker/ops/cuda/kernel_params.h"

// Limits of the kernels that work on paged pools.
namespace tandem::gpu_worker::ops::cuda {

// InvalidArgument names what is outside of them.
absl::Status CheckPool(const PoolParams& pool);
absl::Status CheckDevicePool(const PoolParams& pool);

}  // namespace tandem::gpu_worker::ops::cuda
