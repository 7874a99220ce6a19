#pragma once

#include <cstdint>

// Vectorised bodies of the host ops, compiled once per instruction set from kernels-inl.h. Plain
// pointers only: code of these files must not be shared with others (it may use instructions the
// machine lacks).
namespace tandem::gpu_worker::ops::host {

inline constexpr int kKeySubTile = 16;  // tokens of a K sub-tile, kv::kSubTileTokens
inline constexpr int kMaxKeyTile = 64;  // tokens that one AttendTile call takes

// One tile of keys for a tile of query vectors of the same KV head, with running softmax state.
struct AttendTile {
  const float* q = nullptr;  // [num_queries, head_dim], scaled
  int32_t num_queries = 0;   // a multiple of 8; the rows past the real ones hold anything finite
  int32_t head_dim = 0;      // a multiple of 16
  const float* const* k = nullptr;   // [key_tiles] sub-tiles [head_dim, 16]
  const float* v = nullptr;          // [num_keys rounded up to 16, head_dim], finite
  int32_t num_keys = 0;              // <= kMaxKeyTile
  const int32_t* visible = nullptr;  // [num_queries] how many of the keys each query may see
  float* scores = nullptr;           // scratch [num_queries, kMaxKeyTile]
  float* max = nullptr;              // [num_queries] running
  float* sum = nullptr;              // [num_queries] running
  float* acc = nullptr;              // [num_queries, head_dim] running
};

struct Kernels {
  const char* name;
  // out [n] = x [n] / rms(x) * weight [n]
  void (*rms_norm_f32)(const float* x, const float* weight, int64_t n, float eps, float* out);
  void (*rms_norm_bf16)(const float* x, const float* weight, int64_t n, float eps, uint16_t* out);
  // Rotates head [2 * half] in place; dimension d pairs with d + half.
  void (*rope)(float* head, const float* cos, const float* sin, int64_t half);
  // out [n] = silu(gate [n]) * up [n]
  void (*silu_mul_f32)(const float* gate, const float* up, int64_t n, float* out);
  void (*silu_mul_bf16)(const uint16_t* gate, const uint16_t* up, int64_t n, uint16_t* out);
  void (*float_to_bf16)(const float* x, int64_t n, uint16_t* out);
  void (*bf16_to_float)(const uint16_t* x, int64_t n, float* out);
  // x [n] * factor
  void (*scale)(const float* x, float factor, int64_t n, float* out);
  // A bfloat16 K sub-tile [head_dim / 2, 16, 2] to [head_dim, 16].
  void (*unpack_k)(const uint16_t* tile, int64_t head_dim, float* out);
  // `pairs` pairs of bfloat16 V rows of `width` columns, [pairs, width, 2], to rows of `stride`.
  void (*unpack_v)(const uint16_t* pairs_in, int64_t pairs, int64_t width, int64_t stride,
                   float* out);
  void (*attend_tile)(const AttendTile& tile);
};

const Kernels& BaselineKernels();
const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels();

// The best of this machine.
const Kernels& BestKernels();

}  // namespace tandem::gpu_worker::ops::host
