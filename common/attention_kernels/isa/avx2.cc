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
  // 16 registers are 8 of these vectors, but data may stay in memory.
  static constexpr int kRegisters = 12;
  static constexpr int kSums = 4;     // at once, of K
  static constexpr int kColumns = 2;  // vectors of V at once
  static constexpr bool kMayPrefetch = true;
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
  // 16 pairs of bytes, each sign-extended to 32 bits.
  static __m256i LoadBytePairs(const void* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static __m256 EvenBytes(const void* p) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(LoadBytePairs(p), 24), 24));
  }
  static __m256 OddBytes(const void* p) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(LoadBytePairs(p), 8));
  }
  static Vec LoadEvenInt8(const int8_t* p) { return {EvenBytes(p), EvenBytes(p + 16)}; }
  static Vec LoadOddInt8(const int8_t* p) { return {OddBytes(p), OddBytes(p + 16)}; }
  // E4M3 in the upper bits of half precision is the value times 2^-8, subnormals included.
  static constexpr float kFp8Factor = 256.0f;
  static __m256 Fp8Of(__m128i codes) {  // 8 words, codes in their upper bytes
    const __m128i magnitude = _mm_and_si128(codes, _mm_set1_epi16(0x7f00));
    const __m128i sign = _mm_andnot_si128(_mm_set1_epi16(0x7fff), codes);
    const __m128i nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f00));
    const __m128i half = _mm_or_si128(_mm_srli_epi16(magnitude, 1), sign);
    return _mm256_cvtph_ps(_mm_or_si128(half, _mm_and_si128(nan, _mm_set1_epi16(0x7e00))));
  }
  static __m256 EvenFp8(const uint8_t* p) {
    return Fp8Of(_mm_slli_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), 8));
  }
  static __m256 OddFp8(const uint8_t* p) {
    return Fp8Of(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Vec LoadEvenFp8(const uint8_t* p) { return {EvenFp8(p), EvenFp8(p + 16)}; }
  static Vec LoadOddFp8(const uint8_t* p) { return {OddFp8(p), OddFp8(p + 16)}; }
};

}  // namespace
}  // namespace tandem::attention

#include "common/attention_kernels/paged_decode-inl.h"
#include "common/attention_kernels/stream_read-inl.h"

namespace tandem::attention {

AttendSegmentFn Avx2Kernel(DType kv_dtype) { return WidenedKernel(kv_dtype); }

StoreRowFn Avx2StoreRow() { return StoreRowByOps; }

std::span<const StreamReadForm> Avx2StreamReads() { return kStreamReadForms; }

}  // namespace tandem::attention
