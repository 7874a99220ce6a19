#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "common/model_shape/model_shape.h"

namespace tandem::kv {

// K rows of a block come in sub-tiles of this many tokens, so that a device block of 16 is one
// contiguous run of K.
inline constexpr int kSubTileTokens = 16;
inline constexpr int kCpuBlockTokens = 128;

// What a pool stores where nothing else is asked for. No pool has float16, whose range keys of some
// models exceed.
constexpr DType DefaultPoolType(DType compute_dtype) {
  return compute_dtype == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
}

// Elements that stand together in a lane of 32 bits: dimensions of one token in K, tokens of one
// column in V.
constexpr int32_t LaneElements(DType dtype) {
  return static_cast<int32_t>(sizeof(uint32_t)) / DTypeBytes(dtype);
}

// Geometry of a paged KV pool, of either tier. Element order inside a block is in
// docs/kv_layout.md: pool [block][layer][kv_head], per head a K tile, then a V tile (int8: each
// followed by one float scale per token). Plain value.
struct PoolGeometry {
  DType dtype = DType::kBFloat16;  // float32, bfloat16; int8 and fp8_e4m3 on the CPU tier only
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = kCpuBlockTokens;  // a multiple of 16

  bool has_scales() const { return dtype == DType::kInt8; }
  size_t scales_offset() const;  // bytes from the start of a head's K (V) tile to its scales
  size_t k_tile_bytes() const;   // one head, scales included
  size_t v_tile_bytes() const;
  size_t head_bytes() const;   // K tile and V tile
  size_t layer_bytes() const;  // all heads
  size_t block_bytes() const;  // all layers
  size_t token_bytes() const;  // one token, one layer, K and V of all heads with their scales
  size_t LayerOffset(int64_t block, int32_t layer) const;
  size_t HeadOffset(int64_t block, int32_t layer, int32_t head) const;
  // Elements from the start of a head's K (V) tile to token `t` of the block, dimension `d`.
  size_t KElement(int32_t t, int32_t d) const;
  size_t VElement(int32_t t, int32_t d) const;
};

// Unimplemented for dtypes without a layout here, InvalidArgument for sizes that are not positive
// or not multiples of 16.
absl::Status ValidateGeometry(const PoolGeometry& geometry);

// One token's K and V of all heads: [num_kv_heads, head_dim] each, in `dtype` (float32, bfloat16 or
// float16).
struct TokenRow {
  const void* k = nullptr;
  const void* v = nullptr;
  DType dtype = DType::kFloat32;
};

// Stores a token, converted to the pool's dtype (what becomes of values that it cannot hold is in
// docs/kv_layout.md). `layer_base` is pool + LayerOffset(block, layer); `t` the token's index in
// the block. Idempotent: the same row gives the same bytes. Any thread; distinct tokens may be
// stored concurrently.
void StoreToken(const PoolGeometry& geometry, std::byte* layer_base, int32_t t,
                const TokenRow& row);

// The reverse, element by element, for tests: k, v [num_kv_heads, head_dim] float32.
void LoadToken(const PoolGeometry& geometry, const std::byte* layer_base, int32_t t, float* k,
               float* v);

// What StoreToken and LoadToken of a pool of `dtype` make of a row, [num_heads, head_dim] float32,
// in place.
void RoundRow(DType dtype, int32_t num_heads, int32_t head_dim, float* row);

// One layer of one sequence in a paged pool; token p lives in table[p / block_tokens].
struct PagedLayer {
  const PoolGeometry* geometry = nullptr;
  std::byte* pool = nullptr;
  std::span<const int32_t> table;  // block ids
  int32_t layer = 0;
  int32_t first_head = 0;  // of a copy: heads before it take no part
};

// Copies tokens [first, first + count) of `from` (unchanged) to `to`, whose other tokens are not
// touched. The heads are those from first_head on, as many as both have: a pool that holds some of
// the heads is a window into one that holds all. Dtypes and block sizes may differ; equal dtypes
// keep every bit, others give what StoreToken gives for the loaded row. Any thread; runs that share
// no token may be copied to concurrently.
void CopyTokens(const PagedLayer& from, const PagedLayer& to, int64_t first, int64_t count);

}  // namespace tandem::kv
