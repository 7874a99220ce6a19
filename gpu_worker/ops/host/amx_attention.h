#pragma once

#include <cstdint>

// Prefill attention in bfloat16 by the AMX unit. Plain values only: the code is compiled for that
// unit and shares nothing with other files.
namespace tandem::gpu_worker::ops::host {

inline constexpr int kAmxKeyTile = 64;       // keys of one AmxAttendTile call
inline constexpr int kAmxSubTile = 16;       // keys that lie together, kv::kSubTileTokens
inline constexpr int kAmxChunkColumns = 64;  // columns of V that lie together
inline constexpr int kAmxMaxHeadDim = 256;   // a multiple of 32
inline constexpr int kAmxQueryStep = 16;

// One tile of keys for query vectors of the same KV head, with running softmax state. K and V are
// read where they lie in the pool.
struct AmxAttendTile {
  const uint16_t* q = nullptr;  // [num_queries, head_dim], scaled
  int32_t num_queries = 0;      // a multiple of kAmxQueryStep; those past the real ones see no key
  int32_t head_dim = 0;
  int32_t num_keys = 0;  // <= kAmxKeyTile
  // Of each sub-tile: K [head_dim / 2, 16, 2], and V's chunks, each [8, columns, 2]. Rows past the
  // last key: K may hold anything, V must be finite.
  const uint16_t* k[kAmxKeyTile / kAmxSubTile] = {};
  const uint16_t* v[kAmxKeyTile / kAmxSubTile][kAmxMaxHeadDim / kAmxChunkColumns] = {};
  const int32_t* visible = nullptr;  // [num_queries] how many of the keys each query may see
  float* scores = nullptr;           // scratch [16, kAmxKeyTile]
  uint16_t* weights = nullptr;       // scratch [16, kAmxKeyTile]
  float* max = nullptr;              // [num_queries] running
  float* sum = nullptr;              // [num_queries] running
  float* acc = nullptr;              // [num_queries, head_dim] running
};

// This CPU has AMX, and the process its permission.
void AmxAttend(const AmxAttendTile& tile);

}  // namespace tandem::gpu_worker::ops::host
