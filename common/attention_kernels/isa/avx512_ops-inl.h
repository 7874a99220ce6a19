#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace tandem::attention {
namespace {

struct Ops {
  using Vec = __m512;
  // Of the 32 registers; the rest hold data and factors.
  static constexpr int kAccumulators = 24;
  static constexpr int kMaxGroup = 8;

  static Vec Set1(float x) { return _mm512_set1_ps(x); }
  static Vec Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec MulAdd(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static float ReduceMax(Vec v) { return _mm512_reduce_max_ps(v); }
  static float ReduceAdd(Vec v) { return _mm512_reduce_add_ps(v); }
  static Vec Round(Vec v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec ScaleByPowerOf2(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }
  static Vec ZeroWhereBelow(Vec v, Vec x, float bound) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_NLT_UQ), v);
  }
  static Vec KeepFirst(Vec v, int count, float other) {
    const __mmask16 keep =
        count >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << count) - 1u);
    return _mm512_mask_mov_ps(_mm512_set1_ps(other), keep, v);
  }
  static Vec LoadEvenBf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static Vec LoadOddBf16(const uint16_t* p) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
  }
};

}  // namespace
}  // namespace tandem::attention
