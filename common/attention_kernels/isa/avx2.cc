#include <immintrin.h>
#include <stdint.h>

namespace tandem::attention {
namespace {

// 16 lanes are two registers.
struct Ops {
  struct Vec {
    __m256 low;
    __m256 high;
  };
  // Of the 16 registers 8 accumulate (4 of these vectors), 4 hold data, the rest factors.
  static constexpr int kAccumulators = 4;
  static constexpr int kMaxGroup = 4;

  static Vec Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static Vec Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void Store(float* p, Vec v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static Vec Add(Vec a, Vec b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static Vec Mul(Vec a, Vec b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static Vec MulAdd(Vec a, Vec b, Vec c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Vec Max(Vec a, Vec b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static Vec Min(Vec a, Vec b) {
    return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
  }
  static float ReduceMax(Vec v) {
    const __m256 eight = _mm256_max_ps(v.low, v.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }
  static float ReduceAdd(Vec v) {
    const __m256 eight = _mm256_add_ps(v.low, v.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }
  static Vec Round(Vec v) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(v.low, kNearest), _mm256_round_ps(v.high, kNearest)};
  }
  static __m256 PowerOf2(__m256 n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  }
  static Vec ScaleByPowerOf2(Vec v, Vec n) {
    return {_mm256_mul_ps(v.low, PowerOf2(n.low)), _mm256_mul_ps(v.high, PowerOf2(n.high))};
  }
  static Vec ZeroWhereBelow(Vec v, Vec x, float bound) {
    const __m256 limit = _mm256_set1_ps(bound);
    return {_mm256_andnot_ps(_mm256_cmp_ps(x.low, limit, _CMP_LT_OQ), v.low),
            _mm256_andnot_ps(_mm256_cmp_ps(x.high, limit, _CMP_LT_OQ), v.high)};
  }
  static Vec KeepFirst(Vec v, int count, float other) {
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 low = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes));
    const __m256 high =
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lanes));
    const __m256 fill = _mm256_set1_ps(other);
    return {_mm256_blendv_ps(fill, v.low, low), _mm256_blendv_ps(fill, v.high, high)};
  }
  static __m256i LoadWords(const uint16_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Vec LoadEvenBf16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(LoadWords(p), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(LoadWords(p + 16), 16))};
  }
  static Vec LoadOddBf16(const uint16_t* p) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    return {_mm256_castsi256_ps(_mm256_and_si256(LoadWords(p), upper)),
            _mm256_castsi256_ps(_mm256_and_si256(LoadWords(p + 16), upper))};
  }
};

}  // namespace
}  // namespace tandem::attention

#include "common/attention_kernels/paged_decode-inl.h"

namespace tandem::attention {

AttendSegmentFn Avx2Kernel(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kFloat32:
      return AttendSegment<Float32Policy>;
    case DType::kBFloat16:
      return AttendSegment<WidenedBf16Policy>;
    default:
      return nullptr;
  }
}

}  // namespace tandem::attention
