#pragma once

// Pair products of AVX-512 BF16 and VNNI, after avx512_ops-inl.h.

#include "common/attention_kernels/policies-inl.h"
#include "common/attention_kernels/widen_bytes-inl.h"

namespace tandem::attention {
namespace {

// What a part of a line is multiplied with is in memory.
using WeightPair = int32_t __attribute__((may_alias, aligned(2)));

// Products are written in assembly: GCC 12 copies every accumulator twice per step around the
// intrinsics, which have the sum as both operand and result.

// Queries and probabilities are rounded to bfloat16 as well.
struct PairBf16Policy : FloatSums {
  using Element = uint16_t;
  using Weight = uint16_t;
  using Data = __m512bh;
  using Factor = __m512bh;
  static constexpr int kPerLane = 2;
  static constexpr bool kScales = false;
  static constexpr float kFactor = 1.0f;
  static constexpr bool kMayPrefetch = true;
  static int VChunk(int) { return kChunkColumns; }
  template <int kPart>
  static Data Load(const Element* p) {
    return reinterpret_cast<Data>(_mm512_loadu_si512(p));
  }
  template <int kPart>
  static Factor Broadcast(const Weight* w) {
    int32_t pair;
    memcpy(&pair, w + 2 * kPart, sizeof(pair));
    return reinterpret_cast<Factor>(_mm512_set1_epi32(pair));
  }
  static Acc Dot(Acc acc, Data data, Factor w) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(data), "v"(w));
    return acc;
  }
  template <int kPart>
  static Acc DotBroadcast(Acc acc, Data data, const Weight* w) {
    asm("vdpbf16ps %2%{1to16%}, %1, %0"
        : "+v"(acc)
        : "v"(data), "m"(*reinterpret_cast<const WeightPair*>(w + 2 * kPart)));
    return acc;
  }
  static void StoreWeights(Weight* out, Ops::Vec p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p)));
  }
};

// E4M3 widened to bfloat16.
struct PairFp8Policy : PairBf16Policy {
  using Element = uint8_t;
  static constexpr int kPerLane = 4;
  static constexpr int kParts = 2;
  template <int kPart>
  static Data Load(const Element* p) {
    return reinterpret_cast<Data>(Fp8Widener::Load<kPart>(p));
  }
};

// int8 against integers of 15 bits: sums of 256 such products stay below 2^31. The first part
// multiplies bytes 0 and 2 of a lane, the second 1 and 3; weights are stored in that order.
struct PairInt8Policy {
  using Element = int8_t;
  using Weight = int16_t;
  using Acc = __m512i;
  using Data = __m512i;
  using Factor = __m512i;
  static constexpr int kPerLane = 4;
  static constexpr int kParts = 2;
  static constexpr int kRegisters = 1;
  static constexpr bool kScales = true;
  static constexpr bool kInteger = true;
  static constexpr float kFactor = 1.0f;
  static constexpr bool kMayPrefetch = true;
  static constexpr int kPrefetchLocality = kSecondLevel;
  static int VChunk(int) { return kChunkColumns; }
  static Acc Zero() { return _mm512_setzero_si512(); }
  static Ops::Vec ToFloat(Acc acc) { return _mm512_cvtepi32_ps(acc); }
  template <int kPart>
  static Data Load(const Element* p) {
    const __m512i lanes = _mm512_loadu_si512(p);
    // Even bytes times one are their sign-extended words, in one instruction.
    return kPart == 0 ? _mm512_maddubs_epi16(_mm512_set1_epi16(1), lanes)
                      : _mm512_srai_epi16(lanes, 8);
  }
  template <int kPart>
  static Factor Broadcast(const Weight* w) {
    int32_t pair;
    memcpy(&pair, w + 2 * kPart, sizeof(pair));
    return _mm512_set1_epi32(pair);
  }
  static Acc Dot(Acc acc, Data data, Factor w) {
    asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(data), "v"(w));
    return acc;
  }
  template <int kPart>
  static Acc DotBroadcast(Acc acc, Data data, const Weight* w) {
    asm("vpdpwssd %2%{1to16%}, %1, %0"
        : "+v"(acc)
        : "v"(data), "m"(*reinterpret_cast<const WeightPair*>(w + 2 * kPart)));
    return acc;
  }
  static Acc Add(Acc a, Acc b) { return _mm512_add_epi32(a, b); }
  // 16 of `values` times `factor`, rounded.
  static __m512i Integers(const float* values, Ops::Vec factor) {
    return _mm512_cvtps_epi32(Ops::Mul(Ops::Load(values), factor));
  }
  // The first `count`, a multiple of 16, of a row that has room for `length`.
  static void StoreIntegers(const float* values, int count, float factor, int /*length*/,
                            Weight* row) {
    for (int i = 0; i < count; i += 16) {
      const __m512i integers =
          _mm512_shuffle_epi32(Integers(values + i, Ops::Set1(factor)), _MM_PERM_DBCA);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + i), _mm512_cvtepi32_epi16(integers));
    }
  }
};

}  // namespace
}  // namespace tandem::attention
