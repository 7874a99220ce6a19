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
  // Sums at once, of K and of V: half of the 16 registers, and as many chains of products as cover
  // their latency of four cycles at two a cycle.
  static constexpr int kSums = 4;
  static constexpr int kValueSums = 4;
  static constexpr int kColumns = 4;  // vectors of V at once
  static constexpr int kStreams = 2;  // of the next tile, where it is asked for
  static constexpr bool kMayPrefetch = true;
  static constexpr int kMaxGroup = 8;

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
  // NaN is at most nothing.
  static bool AllAtMost(Vec v, Vec bound) {
    const __m256 low = _mm256_cmp_ps(v.low, bound.low, _CMP_LE_OQ);
    return _mm256_movemask_ps(_mm256_and_ps(low, _mm256_cmp_ps(v.high, bound.high, _CMP_LE_OQ))) ==
           0xff;
  }
  // 2^t for t <= 0 or little above, zero below -126 (no denormals); NaN stays NaN. The polynomial
  // is that of avx512_ops-inl.h.
  [[gnu::always_inline]] static __m256 Exp2(__m256 t) {
    const __m256 floor = _mm256_floor_ps(t);
    const __m256 f = _mm256_sub_ps(t, floor);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(0.0018775767f), f, _mm256_set1_ps(0.00898934002f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.0558263181f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.240153617f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.693153073f));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.999999925f));
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(floor), 23);
    const __m256 scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
    return _mm256_andnot_ps(_mm256_cmp_ps(t, _mm256_set1_ps(-126.0f), _CMP_LT_OQ), scaled);
  }
  [[gnu::always_inline]] static Vec Exp2(Vec t) { return {Exp2(t.low), Exp2(t.high)}; }
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
  static Vec LoadBf16(const uint16_t* p) {
    const auto* words = reinterpret_cast<const __m128i*>(p);
    return {
        _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words)), 16)),
        _mm256_castsi256_ps(
            _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words + 1)), 16))};
  }
  static Vec LoadHalf(const uint16_t* p) {
    const auto* words = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(words)), _mm256_cvtph_ps(_mm_loadu_si128(words + 1))};
  }
  static __m256i Bf16Of(__m256 v) {  // in the lower halves
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded =
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  }
  static void StoreBf16(uint16_t* p, Vec v) {
    const __m256i words = _mm256_packus_epi32(Bf16Of(v.low), Bf16Of(v.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
  }
  static void StoreHalf(uint16_t* p, Vec v) {
    auto* words = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(words, _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(words + 1, _mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT));
  }
  template <int kByte>
  static __m256 Int8Of(const int8_t* p) {
    const __m256i lanes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i top = kByte == 3 ? lanes : _mm256_slli_epi32(lanes, 24 - 8 * kByte);
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(top, 24));
  }
  // Byte kByte of each lane of 32 bits.
  template <int kByte>
  static Vec LoadInt8(const int8_t* p) {
    return {Int8Of<kByte>(p), Int8Of<kByte>(p + 32)};
  }
  // E4M3 in the upper bits of half precision is the value times 2^-8, subnormals included.
  static constexpr float kFp8Factor = 256.0f;
  static __m256i HalfOfFp8(__m256i codes) {  // 16 words, codes in their upper bytes
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f00));
    const __m256i sign = _mm256_andnot_si256(_mm256_set1_epi16(0x7fff), codes);
    const __m256i nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x7f00));
    const __m256i half = _mm256_or_si256(_mm256_srli_epi16(magnitude, 1), sign);
    return _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  }
  template <int kByte>
  static void Fp8Of(const uint8_t* p, __m256* lower, __m256* upper) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i halves = HalfOfFp8(kByte == 0 ? _mm256_slli_epi16(codes, 8) : codes);
    const __m256i even_then_odd = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
    const __m256i ordered =
        _mm256_permute4x64_epi64(_mm256_shuffle_epi8(halves, even_then_odd), 0xd8);
    *lower = _mm256_cvtph_ps(_mm256_castsi256_si128(ordered));
    *upper = _mm256_cvtph_ps(_mm256_extracti128_si256(ordered, 1));
  }
  // Bytes kByte and kByte + 2 of each lane of 32 bits; kByte is 0 or 1.
  template <int kByte>
  static void LoadFp8(const uint8_t* p, Vec* lower, Vec* upper) {
    Fp8Of<kByte>(p, &lower->low, &upper->low);
    Fp8Of<kByte>(p + 32, &lower->high, &upper->high);
  }
};

}  // namespace
}  // namespace tandem::attention

#include "common/attention_kernels/multiply_add_int8-inl.h"
#include "common/attention_kernels/paged_decode-inl.h"
#include "common/attention_kernels/stream_read-inl.h"

namespace tandem::attention {

AttendSegmentFn Avx2Kernel(DType kv_dtype) {
  return kv_dtype == DType::kInt8 ? AttendSegment<MultiplyAddInt8Policy> : WidenedKernel(kv_dtype);
}

StoreRowFn Avx2StoreRow() { return StoreRowByOps; }

std::span<const StreamReadForm> Avx2StreamReads() { return kStreamReadForms; }

}  // namespace tandem::attention
