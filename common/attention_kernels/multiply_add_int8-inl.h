#pragma once

// int8 by the integer products of AVX2, after the operations of isa/avx2.cc.

#include "common/attention_kernels/policies-inl.h"

namespace tandem::attention {
namespace {

// int8 against integers of 15 bits, two products in each sum of 32 bits: 256 of them stay below
// 2^31, also with the words -2^15 that NaN becomes. The first part multiplies bytes 0 and 2 of a
// lane, the second 1 and 3; weights are stored in that order.
struct MultiplyAddInt8Policy {
  struct Data {
    __m256i low;
    __m256i high;
  };
  using Element = int8_t;
  using Weight = int16_t;
  using Acc = Data;
  using Factor = __m256i;
  static constexpr int kPerLane = 4;
  static constexpr int kParts = 2;
  static constexpr int kRegisters = 1;
  static constexpr bool kScales = true;
  static constexpr bool kInteger = true;
  static constexpr float kFactor = 1.0f;
  static constexpr bool kMayPrefetch = true;
  static constexpr int kPrefetchLocality = kSecondLevel;
  static int VChunk(int) { return kChunkColumns; }
  static Acc Zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Ops::Vec ToFloat(Acc acc) {
    return {_mm256_cvtepi32_ps(acc.low), _mm256_cvtepi32_ps(acc.high)};
  }
  template <int kPart>
  static __m256i Words(const Element* p) {
    const __m256i lanes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    // Even bytes times one are their sign-extended words, in one instruction.
    return kPart == 0 ? _mm256_maddubs_epi16(_mm256_set1_epi16(1), lanes)
                      : _mm256_srai_epi16(lanes, 8);
  }
  template <int kPart>
  static Data Load(const Element* p) {
    return {Words<kPart>(p), Words<kPart>(p + 32)};
  }
  template <int kPart>
  static Factor Broadcast(const Weight* w) {
    int32_t pair;
    memcpy(&pair, w + 2 * kPart, sizeof(pair));
    return _mm256_set1_epi32(pair);
  }
  static Acc Dot(Acc acc, Data data, Factor w) {
    return {Dot(acc.low, data.low, w), Dot(acc.high, data.high, w)};
  }
  // In assembly: GCC 12 sums products of different lines first, for which there are no registers.
  static __m256i Dot(__m256i acc, __m256i data, __m256i w) {
    __m256i products = _mm256_madd_epi16(data, w);
    asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(products));
    return acc;
  }
  static Acc Add(Acc a, Acc b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
  }
  // The first `count`, a multiple of 16, of `values` times `factor`, rounded.
  static void StoreIntegers(const float* values, int count, float factor, int /*length*/,
                            Weight* row) {
    const Ops::Vec factors = Ops::Set1(factor);
    for (int i = 0; i < count; i += 16) {
      const Ops::Vec scaled = Ops::Mul(Ops::Load(values + i), factors);
      __m256i words =
          _mm256_packs_epi32(_mm256_cvtps_epi32(scaled.low), _mm256_cvtps_epi32(scaled.high));
      words = _mm256_permute4x64_epi64(words, 0xd8);
      constexpr int kEvenFirst = 0xd8;  // of each four
      words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, kEvenFirst), kEvenFirst);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + i), words);
    }
  }
};

}  // namespace
}  // namespace tandem::attention
