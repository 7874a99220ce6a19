#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace tandem::attention {
namespace {

struct Ops {
  using Vec = __m512;
  static constexpr int kRegisters = 32;
  static constexpr int kSums = 16;    // at once, of K
  static constexpr int kColumns = 4;  // vectors of V at once
  static constexpr bool kMayPrefetch = true;
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
  // NaN is at most nothing.
  static bool AllAtMost(Vec v, Vec bound) {
    return _mm512_cmp_ps_mask(v, bound, _CMP_LE_OQ) == 0xffff;
  }
  static Vec Round(Vec v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec ScaleByPowerOf2(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }
  static Vec ZeroWhereBelow(Vec v, Vec x, float bound) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_NLT_UQ), v);
  }
  // 2^t for t <= 0, zero below -126 (no denormals); NaN stays NaN. A minimax polynomial of degree 5
  // on [0, 1), relative error below 1e-7 beside what t was rounded by.
  static Vec Exp2(Vec t) {
    const __mmask16 normal = _mm512_cmp_ps_mask(t, Set1(-126.0f), _CMP_NLT_UQ);
    const Vec f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    Vec p = _mm512_fmadd_ps(Set1(0.0018775767f), f, Set1(0.00898934002f));
    p = _mm512_fmadd_ps(p, f, Set1(0.0558263181f));
    p = _mm512_fmadd_ps(p, f, Set1(0.240153617f));
    p = _mm512_fmadd_ps(p, f, Set1(0.693153073f));
    p = _mm512_fmadd_ps(p, f, Set1(0.999999925f));
    return _mm512_maskz_scalef_ps(normal, p, t);  // by 2^floor(t)
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
  static __m256i LoadHalfRegister(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static Vec LoadBf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(LoadHalfRegister(p)), 16));
  }
  static Vec LoadHalf(const uint16_t* p) { return _mm512_cvtph_ps(LoadHalfRegister(p)); }
  static void StoreBf16(uint16_t* p, Vec v) {
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i words = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    words = _mm512_mask_or_epi32(words, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits,
                                 _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)));
  }
  static void StoreHalf(uint16_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }
  // Byte kByte of each lane of 32 bits.
  template <int kByte>
  static Vec LoadInt8(const int8_t* p) {
    const __m512i lanes = _mm512_loadu_si512(p);
    const __m512i top = kByte == 3 ? lanes : _mm512_slli_epi32(lanes, 24 - 8 * kByte);
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
  }
  // E4M3 in the upper bits of half precision is the value times 2^-8, subnormals included.
  static constexpr float kFp8Factor = 256.0f;
  static __m512i HalfOfFp8(__m512i codes) {  // 32 words, codes in their upper bytes
    const __m512i all = _mm512_set1_epi16(0x7f00);
    const __m512i magnitude = _mm512_and_si512(codes, all);
    const __m512i sign = _mm512_andnot_si512(_mm512_set1_epi16(0x7fff), codes);
    const __m512i half = _mm512_or_si512(_mm512_srli_epi16(magnitude, 1), sign);
    return _mm512_mask_mov_epi16(half, _mm512_cmpeq_epi16_mask(magnitude, all),
                                 _mm512_set1_epi16(0x7e00));
  }
  // Bytes kByte and kByte + 2 of each lane of 32 bits; kByte is 0 or 1.
  template <int kByte>
  static void LoadFp8(const uint8_t* p, Vec* lower, Vec* upper) {
    const __m512i codes = _mm512_loadu_si512(p);
    const __m512i halves = HalfOfFp8(kByte == 0 ? _mm512_slli_epi16(codes, 8) : codes);
    const __m512i even_then_odd =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i ordered = _mm512_permutexvar_epi16(even_then_odd, halves);
    *lower = _mm512_cvtph_ps(_mm512_castsi512_si256(ordered));
    *upper = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(ordered, 1));
  }
};

}  // namespace
}  // namespace tandem::attention
