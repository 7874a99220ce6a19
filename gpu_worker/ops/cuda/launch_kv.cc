#include <algorithm>
#include <cstdint>

#include "common/base/status_macros.h"
#include "gpu_worker/ops/cuda/kernels.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/cuda/launch_pool.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr uint32_t kStoreThreads = 128;
constexpr uint32_t kCopyThreads = 128;
constexpr int64_t kSubTileTokens = 16;

}  // namespace

absl::Status CheckPool(const PoolParams& pool) {
  TANDEM_RETURN_IF_ERROR(InRange("head_dim", pool.head_dim, 16, 256));
  TANDEM_RETURN_IF_ERROR(MultipleOf("head_dim", pool.head_dim, 16));
  TANDEM_RETURN_IF_ERROR(InRange("block_tokens", pool.block_tokens, 16, 4096));
  TANDEM_RETURN_IF_ERROR(MultipleOf("block_tokens", pool.block_tokens, 16));
  TANDEM_RETURN_IF_ERROR(InRange("num_kv_heads", pool.num_kv_heads, 1, kMaxGridYz));
  if (pool.dtype == ElementType::kFloat16) {
    return absl::InvalidArgumentError("CUDA kernel: KV pools have no float16");
  }
  return absl::OkStatus();
}

absl::Status CheckDevicePool(const PoolParams& pool) {
  if (pool.dtype != ElementType::kFloat32 && pool.dtype != ElementType::kBFloat16) {
    return absl::InvalidArgumentError("CUDA kernel: a device's KV pool is float32 or bfloat16");
  }
  return CheckPool(pool);
}

absl::Status StoreKv(KernelLauncher& launcher, StreamHandle stream, const StoreKvParams& params) {
  if (params.runs.total_rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(CheckDevicePool(params.pool));
  TANDEM_RETURN_IF_ERROR(InRange("total_rows", params.runs.total_rows, 1, kMaxGridX));
  const bool is_scaled = params.kept_as == ElementType::kInt8;
  return Launcher{launcher, stream}.Run(is_scaled ? "store_kv_int8" : "store_kv",
                                        Shape(params.runs.total_rows, 1, 1, kStoreThreads), params);
}

absl::Status CopyKv(KernelLauncher& launcher, StreamHandle stream, const CopyKvParams& params) {
  if (params.count == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(CheckPool(params.from));
  TANDEM_RETURN_IF_ERROR(CheckPool(params.to));
  TANDEM_RETURN_IF_ERROR(InRange("first", params.first, 0, kMaxGridX));
  TANDEM_RETURN_IF_ERROR(InRange("count", params.count, 1, kMaxGridX - params.first));
  const int64_t heads = std::min(params.from.num_kv_heads - params.from_first_head,
                                 params.to.num_kv_heads - params.to_first_head);
  TANDEM_RETURN_IF_ERROR(InRange("num_heads", params.num_heads, 1, heads));
  TANDEM_RETURN_IF_ERROR(
      InRange("head_dim", params.to.head_dim, params.from.head_dim, params.from.head_dim));
  TANDEM_RETURN_IF_ERROR(InRange("num_layers", params.num_layers, 1, kMaxGridYz));
  const int64_t end = int64_t{params.first} + params.count;
  const int64_t sub_tiles =
      (end + kSubTileTokens - 1) / kSubTileTokens - params.first / kSubTileTokens;
  const bool is_same = params.from.dtype == params.to.dtype;
  return Launcher{launcher, stream}.Run(
      is_same ? "copy_kv" : "convert_kv",
      Shape(sub_tiles, params.num_heads, params.num_layers, kCopyThreads), params);
}

}  // namespace tandem::gpu_worker::ops::cuda
