#include <algorithm>
#include <cstdint>
#include <span>

#include "common/base/status_macros.h"
#include "gpu_worker/ops/cuda/kernels.h"
#include "gpu_worker/ops/cuda/launch.h"
#include "gpu_worker/ops/cuda/launch_pool.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr uint32_t kPlainThreads = 128;
constexpr int64_t kPlainWarps = kPlainThreads / 32;
constexpr int64_t kPlainQueries = 8;

absl::Status CheckAttention(ElementType compute, const AttentionParams& params) {
  TANDEM_RETURN_IF_ERROR(CheckDevicePool(params.pool));
  TANDEM_RETURN_IF_ERROR(InRange("num_runs", params.runs.num_runs, 1, kMaxGridYz));
  TANDEM_RETURN_IF_ERROR(
      InRange("qkv.head_dim", params.qkv.head_dim, params.pool.head_dim, params.pool.head_dim));
  TANDEM_RETURN_IF_ERROR(InRange("qkv.num_kv_heads", params.qkv.num_kv_heads,
                                 params.pool.num_kv_heads, params.pool.num_kv_heads));
  TANDEM_RETURN_IF_ERROR(
      MultipleOf("num_q_heads", params.qkv.num_q_heads, params.qkv.num_kv_heads));
  const bool is_wide = params.pool.dtype == ElementType::kFloat32;
  if (is_wide != (compute == ElementType::kFloat32)) {
    return absl::InvalidArgumentError(
        "CUDA kernel: the device's KV pool is float32 for float32 compute, else bfloat16");
  }
  return absl::OkStatus();
}

int64_t Group(const AttentionParams& params) {
  return params.qkv.num_q_heads / params.qkv.num_kv_heads;
}

// Bytes of attention_plain's dynamic shared memory.
int64_t PlainSharedBytes(int64_t head_dim) {
  constexpr int64_t kRows = kPlainWarps * kPlainQueries;
  return 4 * (kPlainQueries * head_dim + kRows * 33 + 3 * kRows + kRows * head_dim);
}

absl::Status AttendPlainly(const Launcher& launcher, const AttentionParams& params) {
  const int64_t queries = int64_t{params.runs.max_rows} * Group(params);
  const bool is_wide = params.pool.dtype == ElementType::kFloat32;
  return launcher.Run(
      is_wide ? "attention_plain_f32" : "attention_plain_bf16",
      Shape((queries + kPlainQueries - 1) / kPlainQueries, params.qkv.num_kv_heads,
            params.runs.num_runs, kPlainThreads, PlainSharedBytes(params.pool.head_dim)),
      params);
}

// Kernels by the head_dim that they have room for.
struct SizedKernel {
  int32_t head_dim;
  const char* name;
};
constexpr SizedKernel kPrefill[] = {
    {64, "prefill_attention_64"}, {128, "prefill_attention_128"}, {256, "prefill_attention_256"}};
constexpr SizedKernel kLongPrefill[] = {{64, "prefill_attention_64_long"},
                                        {128, "prefill_attention_128_long"}};
constexpr SizedKernel kDecode[] = {
    {64, "decode_attention_64"}, {128, "decode_attention_128"}, {256, "decode_attention_256"}};

const SizedKernel* Smallest(std::span<const SizedKernel> kernels, int32_t head_dim) {
  for (const SizedKernel& kernel : kernels) {
    if (head_dim <= kernel.head_dim) {
      return &kernel;
    }
  }
  return nullptr;
}

constexpr uint32_t kMatrixThreads = 128;
constexpr int64_t kMatrixWarps = 4;
constexpr int64_t kMatrixRows = 16;
constexpr int64_t kTileTokens = 32;
constexpr int64_t kStages = 2;

// Queries as pairs, rows padded by four words.
int64_t QueryBytes(int64_t rows, int64_t dim) { return rows * (dim / 2 + 4) * 4; }

int64_t PrefillSharedBytes(int64_t queries, int64_t dim) {
  return QueryBytes(queries, dim) + kStages * 2 * kTileTokens * dim * 2;
}

int64_t DecodeSharedBytes(int64_t dim) {
  return QueryBytes(kMatrixRows, dim) + 4 * (kMatrixRows * dim + 2 * kMatrixWarps * kMatrixRows);
}

// Tokens that a split has at least: below, merging costs more than the device's idle part gains.
constexpr int64_t kMinSplitTokens = 256;
constexpr int64_t kBlocksPerMultiprocessor = 4;
constexpr int64_t kMaxSplits = 64;

// Floats of scratch that `splits` of `rows` rows take.
int64_t ScratchFloats(int64_t rows, int64_t splits, int64_t num_q_heads, int64_t head_dim) {
  return rows * splits * num_q_heads * (head_dim + 1);
}

int64_t Splits(const DeviceTraits& traits, const AttentionParams& params, int64_t blocks) {
  const int64_t rows = params.runs.num_runs;
  const int64_t wanted =
      (traits.num_multiprocessors * kBlocksPerMultiprocessor + blocks - 1) / blocks;
  const int64_t useful = (params.runs.max_context + kMinSplitTokens - 1) / kMinSplitTokens;
  const int64_t each = ScratchFloats(rows, 1, params.qkv.num_q_heads, params.qkv.head_dim);
  const int64_t room = params.scratch != nullptr ? params.scratch_floats / each : 1;
  return std::max<int64_t>(1, std::min({wanted, useful, room, kMaxSplits}));
}

absl::Status PrefillByMatrices(const Launcher& launcher, const AttentionParams& params) {
  const int64_t queries = int64_t{params.runs.max_rows} * Group(params);
  const int32_t head_dim = params.pool.head_dim;
  const DeviceTraits& traits = launcher.launcher.traits();
  const int64_t shared_limit = traits.max_shared_bytes_per_block;
  const int32_t largest = traits.compute_capability < 80 ? 64 : 128;
  // Twice the queries per load of K and V, where there are so many.
  const SizedKernel* kernel = head_dim <= largest ? Smallest(kLongPrefill, head_dim) : nullptr;
  int64_t tile = kMatrixWarps * 2 * kMatrixRows;
  if (kernel == nullptr || queries <= tile / 2 ||
      PrefillSharedBytes(tile, kernel->head_dim) > shared_limit) {
    kernel = Smallest(kPrefill, head_dim);
    tile = kMatrixWarps * kMatrixRows;
  }
  const int64_t shared = PrefillSharedBytes(tile, kernel->head_dim);
  if (shared > shared_limit || head_dim > 2 * largest) {
    return AttendPlainly(launcher, params);
  }
  return launcher.Run(kernel->name,
                      Shape((queries + tile - 1) / tile, params.qkv.num_kv_heads,
                            params.runs.num_runs, kMatrixThreads, shared),
                      params);
}

absl::Status DecodeByMatrices(const Launcher& launcher, const AttentionParams& wanted) {
  AttentionParams params = wanted;
  const SizedKernel* kernel = Smallest(kDecode, params.pool.head_dim);
  const int64_t tiles = params.qkv.num_kv_heads * ((Group(params) + kMatrixRows - 1) / kMatrixRows);
  TANDEM_RETURN_IF_ERROR(InRange("KV heads times tiles of query heads", tiles, 1, kMaxGridYz));
  const int64_t splits = Splits(launcher.launcher.traits(), params, tiles * params.runs.num_runs);
  params.num_splits = static_cast<int32_t>(splits);
  TANDEM_RETURN_IF_ERROR(launcher.Run(kernel->name,
                                      Shape(splits, tiles, params.runs.num_runs, kMatrixThreads,
                                            DecodeSharedBytes(kernel->head_dim)),
                                      params));
  if (splits == 1) {
    return absl::OkStatus();
  }
  return launcher.Run("decode_attention_merge",
                      Shape(params.qkv.num_q_heads, params.runs.num_runs, 1, kMatrixThreads),
                      params);
}

// What prefill and decode have in common; `by_matrices` is for all but float32.
absl::Status Attend(const Launcher& launcher, ElementType compute, AttentionParams params,
                    absl::Status (*by_matrices)(const Launcher&, const AttentionParams&)) {
  if (params.runs.total_rows == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(CheckAttention(compute, params));
  params.out_type = compute;
  return compute == ElementType::kFloat32 ? AttendPlainly(launcher, params)
                                          : by_matrices(launcher, params);
}

}  // namespace

absl::Status PrefillAttention(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                              const AttentionParams& params) {
  return Attend({launcher, stream}, compute, params, PrefillByMatrices);
}

absl::Status DecodeAttention(KernelLauncher& launcher, StreamHandle stream, ElementType compute,
                             const AttentionParams& params) {
  return Attend({launcher, stream}, compute, params, DecodeByMatrices);
}

int64_t DecodeScratchFloats(const DeviceTraits& traits, int32_t num_q_heads, int32_t head_dim) {
  // Contexts are split only while rows alone leave the device idle, so that rows times splits stays
  // within twice the blocks that fill it.
  return ScratchFloats(2 * traits.num_multiprocessors * kBlocksPerMultiprocessor, 1, num_q_heads,
                       head_dim);
}

}  // namespace tandem::gpu_worker::ops::cuda
