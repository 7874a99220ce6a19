#pragma once

// E4M3 to bfloat16, which holds every value of it, by AVX-512 VBMI: 128
// entries of a table are one instruction.

#include "common/attention_kernels/policies-inl.h"

namespace tandem::attention {
namespace {

// bfloat16 of the 128 magnitudes of a byte, as lower and upper bytes.
struct MagnitudeTable {
  alignas(64) uint8_t lower[128];
  alignas(64) uint8_t upper[128];
};

constexpr uint32_t Bf16OfInteger(uint32_t value) {
  if (value == 0) {
    return 0;
  }
  uint32_t exponent = 0;
  while ((value >> (exponent + 1)) != 0) {
    ++exponent;
  }
  return ((127 + exponent) << 7) | ((value << (7 - exponent)) & 0x7f);
}

constexpr uint32_t Bf16OfFp8(uint32_t magnitude) {
  if (magnitude == 0x7f) {
    return 0x7fc0;
  }
  // n * 2^-9 below the normal range; above it only the exponents' biases differ, 7 and 127.
  return magnitude == 0  ? 0
         : magnitude < 8 ? Bf16OfInteger(magnitude) - (9u << 7)
                         : (magnitude << 4) + (120u << 7);
}

template <typename Function>
constexpr MagnitudeTable MakeTable(Function bf16_of) {
  MagnitudeTable table{};
  for (uint32_t i = 0; i < 128; ++i) {
    table.lower[i] = static_cast<uint8_t>(bf16_of(i) & 0xff);
    table.upper[i] = static_cast<uint8_t>(bf16_of(i) >> 8);
  }
  return table;
}

constexpr MagnitudeTable kFp8Magnitudes = MakeTable(Bf16OfFp8);

// Two of the four bytes of each lane, those of its lower (part 0) or upper half, each of them
// twice.
struct alignas(64) ByteTwice {
  uint8_t index[64];
};
constexpr ByteTwice MakeByteTwice(int part) {
  ByteTwice twice{};
  for (int i = 0; i < 64; ++i) {
    twice.index[i] = static_cast<uint8_t>(i / 4 * 4 + 2 * part + i % 4 / 2);
  }
  return twice;
}
constexpr ByteTwice kByteTwice[2] = {MakeByteTwice(0), MakeByteTwice(1)};

// 32 bytes, each of them twice, as words whose upper bytes have the sign; `magnitudes` has their
// magnitudes in seven bits of each byte.
inline __m512i LookUp(__m512i bytes, __m512i magnitudes, const MagnitudeTable& table) {
  const __m512i lower = _mm512_permutex2var_epi8(_mm512_load_si512(table.lower), magnitudes,
                                                 _mm512_load_si512(table.lower + 64));
  const __m512i upper = _mm512_permutex2var_epi8(_mm512_load_si512(table.upper), magnitudes,
                                                 _mm512_load_si512(table.upper + 64));
  const __m512i words = _mm512_mask_mov_epi8(lower, 0xaaaaaaaaaaaaaaaaull, upper);
  // words | (bytes & sign)
  return _mm512_ternarylogic_epi64(words, bytes, _mm512_set1_epi16(static_cast<int16_t>(0x8000)),
                                   0xf8);
}

struct Fp8Widener {
  using Element = uint8_t;
  static constexpr bool kScales = false;
  template <int kPart>
  static __m512i Load(const Element* p) {
    const __m512i bytes =
        _mm512_permutexvar_epi8(_mm512_load_si512(kByteTwice[kPart].index), _mm512_loadu_si512(p));
    return LookUp(bytes, bytes, kFp8Magnitudes);  // the sign bit is not part of the index
  }
};

}  // namespace
}  // namespace tandem::attention
