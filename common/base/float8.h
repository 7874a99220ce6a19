#pragma once

#include <bit>
#include <cstdint>

namespace tandem::base {

// OCP 8-bit float E4M3 (the "fn" form: no infinity, one NaN per sign, largest value 448, smallest
// subnormal 2^-9). Round to nearest even; what is larger than 448, infinity included, becomes 448
// with its sign; NaN stays NaN.
inline uint8_t FloatToFloat8E4M3(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return static_cast<uint8_t>(sign | 0x7fu);
  }
  if (magnitude < 0x3c800000u) {
    // Below the normal range: adding 2^14 leaves the rounded multiple of 2^-9 in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t rounded = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
  return static_cast<uint8_t>(sign | (rounded > 0x7eu ? 0x7eu : rounded));
}

inline float Float8E4M3ToFloat(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) {
    return std::bit_cast<float>(sign | 0x7fc00000u);
  }
  if (magnitude < 8) {
    const float value = static_cast<float>(magnitude) * 0x1p-9f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
}

}  // namespace tandem::base
