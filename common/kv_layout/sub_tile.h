#pragma once

#include <cstdint>

#include "common/model_shape/model_shape.h"

// Vectorised conversions between float32 and the element types of KV tiles, a sub-tile of 16 tokens
// of one head at a time; compiled once per instruction set from sub_tile-inl.h. Plain pointers
// only: code of these files must not be shared with others (it may use instructions the machine
// lacks). All instruction sets give the same bits. Rounding rules: docs/kv_layout.md.
namespace tandem::kv {

// Where a sub-tile stands in a V tile.
struct SubTilePlace {
  int32_t head_dim = 0;      // a multiple of 16
  int32_t block_tokens = 0;  // of the tile
  int32_t token = 0;         // the sub-tile's first, a multiple of 16
};

// Conversions of one element type. `scales` are the 16 tokens' (int8 only, else unused).
struct SubTileCodec {
  // K sub-tile to [head_dim, 16] and back.
  void (*unpack_k)(const void* in, const float* scales, int32_t head_dim, float* out);
  void (*pack_k)(const float* in, int32_t head_dim, void* out, float* scales);
  // V sub-tile at `place` of the V tile to [16, head_dim] and back.
  void (*unpack_v)(const void* tile, const float* scales, const SubTilePlace& place, float* out);
  void (*pack_v)(const float* in, const SubTilePlace& place, void* tile, float* scales);
  // One token's `count` elements in a row, and back; the scale is 0 where the type has none.
  float (*pack_row)(const float* in, int32_t count, void* out);
  void (*unpack_row)(const void* in, float scale, int32_t count, float* out);
};

struct SubTileKernels {
  const char* name;
  SubTileCodec float32;
  SubTileCodec bfloat16;
  SubTileCodec int8;
  SubTileCodec float8_e4m3;
  // Rows of `count` elements, a multiple of 16, in 16-bit types.
  void (*widen_bfloat16)(const uint16_t* in, int32_t count, float* out);
  void (*widen_float16)(const uint16_t* in, int32_t count, float* out);

  // `dtype` is one that pools have.
  const SubTileCodec& codec(DType dtype) const {
    return dtype == DType::kFloat32    ? float32
           : dtype == DType::kBFloat16 ? bfloat16
           : dtype == DType::kInt8     ? int8
                                       : float8_e4m3;
  }
};

const SubTileKernels& BaselineSubTileKernels();
const SubTileKernels& Avx2SubTileKernels();
const SubTileKernels& Avx512SubTileKernels();

// The best of this machine.
const SubTileKernels& BestSubTileKernels();

}  // namespace tandem::kv
