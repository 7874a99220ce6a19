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

// Geometry of a paged KV pool, of either tier. Element order inside a block is in
// docs/kv_layout.md: pool [block][layer][kv_head], per head a K tile, then a V tile (int8: each
// followed by its float scales). Plain value.
struct PoolGeometry {
  DType dtype = DType::kBFloat16;  // float32, bfloat16 (int8 and fp8_e4m3 on the CPU tier only)
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = kCpuBlockTokens;  // a multiple of 16

  size_t k_tile_bytes() const;  // one head, scales included
  size_t v_tile_bytes() const;
  size_t head_bytes() const;   // K tile and V tile
  size_t layer_bytes() const;  // all heads
  size_t block_bytes() const;  // all layers
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

// Stores a token, converted to the pool's dtype. `layer_base` is pool + LayerOffset(block, layer);
// `t` the token's index in the block. Idempotent. Any thread; distinct tokens may be stored
// concurrently.
void StoreToken(const PoolGeometry& geometry, std::byte* layer_base, int32_t t,
                const TokenRow& row);

// The reverse, for tests and conversions: k, v [num_kv_heads, head_dim] float32.
void LoadToken(const PoolGeometry& geometry, const std::byte* layer_base, int32_t t, float* k,
               float* v);

// One layer of one sequence in a paged pool; token p lives in table[p / block_tokens].
struct PagedLayer {
  const PoolGeometry* geometry = nullptr;
  std::byte* pool = nullptr;
  std::span<const int32_t> table;  // block ids
  int32_t layer = 0;
};

// Copies tokens [first, first + count) of `from` (unchanged) to `to`; dtypes and block sizes may
// differ (runs of equal layout are copied whole).
void CopyTokens(const PagedLayer& from, const PagedLayer& to, int64_t first, int64_t count);

}  // namespace tandem::kv
