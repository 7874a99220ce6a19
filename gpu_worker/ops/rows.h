#pragma once

#include <cstdint>
#include <span>

#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/op.h"

// Operators that work on each row alone.
namespace tandem::gpu_worker::ops {

// out [rows, width] float32 = rows `ids` of table [any, width] in the compute dtype. Ids in range.
struct EmbedArgs {
  const std::byte* table = nullptr;
  std::span<const int32_t> ids;
  int64_t width = 0;
  float* out = nullptr;
};
void Embed(OpContext& context, const EmbedArgs& args);

// out [rows, width] in the compute dtype = RMSNorm of `in` [.., width] float32, row i being in's
// row ids[i] (i without ids).
struct RmsNormArgs {
  const float* in = nullptr;
  const float* weight = nullptr;  // [width]
  float eps = 0;
  int64_t rows = 0;
  int64_t width = 0;
  const int32_t* row_ids = nullptr;  // [rows] or null
  std::byte* out = nullptr;
};
void RmsNorm(OpContext& context, const RmsNormArgs& args);

// In place on qkv [rows, (num_q_heads + 2 * num_kv_heads) * head_dim] float32, rows being Q heads,
// K heads, V heads: RMSNorm over head_dim of each Q and K head where weights are given, then
// rotation by the row's position.
struct RopeArgs {
  float* qkv = nullptr;
  std::span<const int32_t> positions;  // [rows]
  const float* cos = nullptr;          // [.., head_dim / 2], one line per position
  const float* sin = nullptr;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;
  float eps = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
};
void Rope(OpContext& context, const RopeArgs& args);

// out [rows, width] = silu(gate) * up, of gate_up [rows, 2 * width] (gate first); compute dtype.
struct SiluMulArgs {
  const std::byte* gate_up = nullptr;
  int64_t rows = 0;
  int64_t width = 0;
  std::byte* out = nullptr;
};
void SiluMul(OpContext& context, const SiluMulArgs& args);

// Columns [first_column, first_column + width) of rows `row_ids` of in [.., in_width] float32, to
// out [rows, width] in the compute dtype; and back, to a matrix in the compute dtype. The two ends
// of an exchange of rows with the CPU side.
struct PackRowsArgs {
  const float* in = nullptr;
  int64_t in_width = 0;
  int64_t first_column = 0;
  int64_t width = 0;
  std::span<const int32_t> row_ids;
  std::byte* out = nullptr;
};
// Runs at once, on the calling (stream) thread: it is part of a larger piece of stream work.
void PackRows(const OpContext& context, const PackRowsArgs& args);

}  // namespace tandem::gpu_worker::ops
