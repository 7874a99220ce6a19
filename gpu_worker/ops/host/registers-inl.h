#pragma once

// Registers of TANDEM_LANES floats, for files that are compiled for one instruction set. Everything
// is local to the file.

#include <cstdint>
#include <cstring>

#if TANDEM_LANES == 16
#include <immintrin.h>
#endif

namespace tandem::gpu_worker::ops::host {
namespace {

constexpr int kLanes = TANDEM_LANES;
typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t BitVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HalfVec __attribute__((vector_size(kLanes * 2)));

inline Vec Load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }

// e^x, clamped to [-87, 88]. Not left to the compiler, which takes loops over clamped values apart
// into one branch per clamp, each with a division of its own. With fewer terms the relative error
// is 3e-6, far below a bfloat16's.
enum class Terms { kAll, kForBf16 };

template <Terms kTerms>
inline Vec Exp(Vec x) {
  x = x < -87.0f ? Vec{} - 87.0f : x;
  x = x > 88.0f ? Vec{} + 88.0f : x;
  const Vec shifted = x * 1.44269504f + 12582912.0f;
  const Vec n = shifted - 12582912.0f;
  const Vec r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Vec sum = Vec{} + 1.0f / 120.0f;
  if constexpr (kTerms == Terms::kAll) {
    sum = (r * (1.0f / 5040.0f) + 1.0f / 720.0f) * r + 1.0f / 120.0f;
  }
  sum = sum * r + 1.0f / 24.0f;
  sum = sum * r + 1.0f / 6.0f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
  return sum * reinterpret_cast<Vec>(power);
}

inline Vec LoadBf16(const uint16_t* p) {
  HalfVec half;
  std::memcpy(&half, p, sizeof(half));
  return reinterpret_cast<Vec>(__builtin_convertvector(half, BitVec) << 16);
}

inline void StoreBf16(uint16_t* p, Vec v) {
  const BitVec bits = reinterpret_cast<BitVec>(v);
  const BitVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const BitVec kept = (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded;
  const HalfVec half = __builtin_convertvector(kept, HalfVec);
  std::memcpy(p, &half, sizeof(half));
}

// Relative error up to 2^-14, for results that become bfloat16.
inline Vec CoarseReciprocal(Vec x) {
#if TANDEM_LANES == 16
  return reinterpret_cast<Vec>(_mm512_maskz_rcp14_ps(0xffff, reinterpret_cast<__m512>(x)));
#else
  return 1.0f / x;
#endif
}

struct LaneIndex {
  int32_t lane[kLanes];
};
constexpr LaneIndex MakeLaneIndex() {
  LaneIndex index = {};
  for (int i = 0; i < kLanes; ++i) {
    index.lane[i] = i;
  }
  return index;
}
// 0, 1, 2 ...
inline IntVec Lanes() {
  static constexpr LaneIndex kIndex = MakeLaneIndex();
  IntVec lanes;
  std::memcpy(&lanes, &kIndex, sizeof(lanes));
  return lanes;
}

inline float SumOf(Vec v) {
  float parts[kLanes];
  Store(parts, v);
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < kLanes; ++i) {
    sum += parts[i];
  }
  return sum;
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::host
