// Included once by each kernels_<isa>.cc, which defines TANDEM_LANES (floats of a vector register)
// and TANDEM_TABLE (name of the function that returns the table). Everything is local to the file.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "gpu_worker/ops/fast_exp.h"
#include "gpu_worker/ops/host/kernels.h"
#include "gpu_worker/ops/host/registers-inl.h"

namespace tandem::gpu_worker::ops::host {
namespace {

inline uint16_t ToBf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
inline float FromBf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// e^x, clamped to [-87, 88].
inline float Exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  return BoundedExp(x > 88.0f ? 88.0f : x);
}

inline float InverseRms(const float* x, int64_t n, float eps) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    sum += x[i] * x[i];
  }
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

void RmsNormF32(const float* x, const float* weight, int64_t n, float eps, float* out) {
  const float factor = InverseRms(x, n, eps);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = x[i] * factor * weight[i];
  }
}

void RmsNormBf16(const float* x, const float* weight, int64_t n, float eps, uint16_t* out) {
  const float factor = InverseRms(x, n, eps);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = ToBf16(x[i] * factor * weight[i]);
  }
}

void Rope(float* head, const float* cos, const float* sin, int64_t half) {
  float* low = head;
  float* high = head + half;
#pragma omp simd
  for (int64_t d = 0; d < half; ++d) {
    const float a = low[d];
    const float b = high[d];
    low[d] = a * cos[d] - b * sin[d];
    high[d] = b * cos[d] + a * sin[d];
  }
}

// `body` for each register of a, b and out [n]; the rest through registers filled up with zeros.
template <typename T, typename Body>
inline void ForRegisters(const T* a, const T* b, int64_t n, T* out, Body body) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    body(a + i, b + i, out + i);
  }
  if (i < n) {
    const size_t bytes = static_cast<size_t>(n - i) * sizeof(T);
    T rest[3][kLanes] = {};
    std::memcpy(rest[0], a + i, bytes);
    std::memcpy(rest[1], b + i, bytes);
    body(rest[0], rest[1], rest[2]);
    std::memcpy(out + i, rest[2], bytes);
  }
}

void SiluMulF32(const float* gate, const float* up, int64_t n, float* out) {
  ForRegisters(gate, up, n, out, [](const float* g, const float* u, float* to) {
    const Vec x = Load(g);
    Store(to, x / (1.0f + Exp<Terms::kAll>(-x)) * Load(u));
  });
}

void SiluMulBf16(const uint16_t* gate, const uint16_t* up, int64_t n, uint16_t* out) {
  ForRegisters(gate, up, n, out, [](const uint16_t* g, const uint16_t* u, uint16_t* to) {
    const Vec x = LoadBf16(g);
    StoreBf16(to, x * LoadBf16(u) * CoarseReciprocal(1.0f + Exp<Terms::kForBf16>(-x)));
  });
}

void FloatToBf16(const float* x, int64_t n, uint16_t* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = ToBf16(x[i]);
  }
}

void Bf16ToFloat(const uint16_t* x, int64_t n, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = FromBf16(x[i]);
  }
}

void Scale(const float* x, float factor, int64_t n, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    out[i] = x[i] * factor;
  }
}

// The 32 bits of a pair hold the even element low and the odd one high.
inline float EvenOf(uint32_t pair) {
  const uint32_t bits = pair << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float OddOf(uint32_t pair) {
  const uint32_t bits = pair & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void UnpackK(const uint16_t* tile, int64_t head_dim, float* out) {
  for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
    uint32_t in[kKeySubTile];
    std::memcpy(in, tile + pair * 2 * kKeySubTile, sizeof(in));
    float* even = out + 2 * pair * kKeySubTile;
    float* odd = even + kKeySubTile;
#pragma omp simd
    for (int t = 0; t < kKeySubTile; ++t) {
      even[t] = EvenOf(in[t]);
      odd[t] = OddOf(in[t]);
    }
  }
}

void UnpackV(const uint16_t* pairs_in, int64_t pairs, int64_t width, int64_t stride, float* out) {
  for (int64_t pair = 0; pair < pairs; ++pair) {
    float* even = out + 2 * pair * stride;
    float* odd = even + stride;
    for (int64_t d = 0; d < width; d += 16) {  // head_dim is a multiple of 16
      uint32_t in[16];
      std::memcpy(in, pairs_in + (pair * width + d) * 2, sizeof(in));
#pragma omp simd
      for (int i = 0; i < 16; ++i) {
        even[d + i] = EvenOf(in[i]);
        odd[d + i] = OddOf(in[i]);
      }
    }
  }
}

// kQ query rows by kSub K sub-tiles: scores[q][s * 16 + t] = q . k.
template <int kQ, int kSub>
inline void ScoreBlock(const float* q, int64_t head_dim, const float* const* k, float* scores) {
  constexpr int kVecs = kKeySubTile / kLanes * kSub;
  constexpr int kPerSub = kKeySubTile / kLanes;
  Vec acc[kQ][kVecs] = {};
  for (int64_t d = 0; d < head_dim; ++d) {
    Vec keys[kVecs];
    for (int s = 0; s < kSub; ++s) {
      for (int i = 0; i < kPerSub; ++i) {
        keys[s * kPerSub + i] = Load(k[s] + d * kKeySubTile + i * kLanes);
      }
    }
    for (int row = 0; row < kQ; ++row) {
      const float value = q[row * head_dim + d];
      for (int i = 0; i < kVecs; ++i) {
        acc[row][i] += keys[i] * value;
      }
    }
  }
  for (int row = 0; row < kQ; ++row) {
    for (int i = 0; i < kVecs; ++i) {
      Store(scores + row * kMaxKeyTile + i * kLanes, acc[row][i]);
    }
  }
}

// acc[q][0 .. kVecs * kLanes) += scores[q][t] * v[t].
template <int kQ, int kVecs>
inline void ValueBlock(const float* scores, int64_t num_keys, const float* v, int64_t head_dim,
                       float* out) {
  Vec acc[kQ][kVecs];
  for (int row = 0; row < kQ; ++row) {
    for (int i = 0; i < kVecs; ++i) {
      acc[row][i] = Load(out + row * head_dim + i * kLanes);
    }
  }
  for (int64_t t = 0; t < num_keys; ++t) {
    Vec values[kVecs];
    for (int i = 0; i < kVecs; ++i) {
      values[i] = Load(v + t * head_dim + i * kLanes);
    }
    for (int row = 0; row < kQ; ++row) {
      const float weight = scores[row * kMaxKeyTile + t];
      for (int i = 0; i < kVecs; ++i) {
        acc[row][i] += values[i] * weight;
      }
    }
  }
  for (int row = 0; row < kQ; ++row) {
    for (int i = 0; i < kVecs; ++i) {
      Store(out + row * head_dim + i * kLanes, acc[row][i]);
    }
  }
}

// Turns one row of scores into weights and brings max, sum and acc up to date.
inline void SoftmaxRow(const AttendTile& tile, int32_t row, int32_t padded_keys) {
  float* scores = tile.scores + row * kMaxKeyTile;
  const int32_t visible = tile.visible[row];
  float largest = tile.max[row];
#pragma omp simd reduction(max : largest)
  for (int32_t t = 0; t < visible; ++t) {
    largest = scores[t] > largest ? scores[t] : largest;
  }
  const IntVec lanes = Lanes();
  Vec sums = {};
  for (int32_t t = 0; t < padded_keys; t += kLanes) {
    // Chosen by index: the scores of unused keys may be NaN.
    const Vec weights = lanes + t < visible ? Exp<Terms::kAll>(Load(scores + t) - largest) : Vec{};
    Store(scores + t, weights);
    sums += weights;
  }
  const float sum = SumOf(sums);
  if (largest > tile.max[row]) {
    const float decay = tile.max[row] < -1e30f ? 0.0f : Exp(tile.max[row] - largest);
    tile.sum[row] *= decay;
    float* acc = tile.acc + static_cast<int64_t>(row) * tile.head_dim;
#pragma omp simd
    for (int32_t d = 0; d < tile.head_dim; ++d) {
      acc[d] *= decay;
    }
    tile.max[row] = largest;
  }
  tile.sum[row] += sum;
}

// Wide registers hold 8 rows by 2 vectors of sums; narrow ones 4 rows by one sub-tile or 2 vectors.
constexpr int kBlockRows = kLanes == 16 ? 8 : 4;

void ScoreRows(const AttendTile& tile, int32_t row, int32_t sub_tiles) {
  const float* q = tile.q + static_cast<int64_t>(row) * tile.head_dim;
  float* scores = tile.scores + row * kMaxKeyTile;
  int32_t s = 0;
  if (kLanes == 16) {
    for (; s + 2 <= sub_tiles; s += 2) {
      ScoreBlock<kBlockRows, 2>(q, tile.head_dim, tile.k + s, scores + s * kKeySubTile);
    }
  }
  for (; s < sub_tiles; ++s) {
    ScoreBlock<kBlockRows, 1>(q, tile.head_dim, tile.k + s, scores + s * kKeySubTile);
  }
}

void ValueRows(const AttendTile& tile, int32_t row, int32_t keys) {
  const float* scores = tile.scores + row * kMaxKeyTile;
  float* acc = tile.acc + static_cast<int64_t>(row) * tile.head_dim;
  int32_t d = 0;
  for (; d + 2 * kLanes <= tile.head_dim; d += 2 * kLanes) {
    ValueBlock<kBlockRows, 2>(scores, keys, tile.v + d, tile.head_dim, acc + d);
  }
  for (; d < tile.head_dim; d += kLanes) {
    ValueBlock<kBlockRows, 1>(scores, keys, tile.v + d, tile.head_dim, acc + d);
  }
}

void AttendTileKernel(const AttendTile& tile) {
  const int32_t sub_tiles = (tile.num_keys + kKeySubTile - 1) / kKeySubTile;
  for (int32_t row = 0; row < tile.num_queries; row += kBlockRows) {
    ScoreRows(tile, row, sub_tiles);
    for (int32_t i = row; i < row + kBlockRows; ++i) {
      SoftmaxRow(tile, i, sub_tiles * kKeySubTile);
    }
    ValueRows(tile, row, tile.num_keys);
  }
}

}  // namespace

const Kernels& TANDEM_TABLE() {
  static constexpr Kernels kTable = {TANDEM_NAME, RmsNormF32,  RmsNormBf16, Rope,
                                     SiluMulF32,  SiluMulBf16, FloatToBf16, Bf16ToFloat,
                                     Scale,       UnpackK,     UnpackV,     AttendTileKernel};
  return kTable;
}

}  // namespace tandem::gpu_worker::ops::host
