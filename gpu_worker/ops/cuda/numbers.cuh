#pragma once

#include "gpu_worker/ops/cuda/intrinsics.cuh"

// Number formats, rounded as the host rounds them (common/kv_layout/sub_tile-inl.h has the rules).
namespace tandem::gpu_worker::ops::cuda {

TANDEM_DEVICE uint16_t BFloat16Of(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

TANDEM_DEVICE float FloatOfBFloat16(uint32_t bits) { return FloatOf(bits << 16); }

// Beyond its range the largest value, as the host stores it.
TANDEM_DEVICE uint8_t Float8Of(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-6: adding 2^14 leaves the rounded multiple of 2^-9 in the low bits.
  const uint32_t small = BitsOf(AddRounded(FloatOf(magnitude), 16384.0f)) - 0x46800000u;
  const uint32_t normal = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u) - (120u << 23)) >> 20;
  uint32_t code = magnitude < 0x3c800000u ? small : normal;
  code = code > 0x7eu ? 0x7eu : code;
  code = magnitude > 0x7f800000u ? 0x7fu : code;
  return static_cast<uint8_t>(code | ((bits >> 24) & 0x80u));
}

TANDEM_DEVICE float FloatOfFloat8(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float small = static_cast<float>(magnitude) * (1.0f / 512.0f);
  uint32_t bits = magnitude < 8u ? BitsOf(small) : (magnitude << 20) + (120u << 23);
  bits = magnitude == 0x7fu ? 0x7fc00000u : bits;
  return FloatOf(bits | ((code & 0x80u) << 24));
}

// `value` is already divided by the scale. NaN becomes -127 (its row's scale is NaN).
TANDEM_DEVICE uint8_t Int8Of(float value) {
  float clamped = value > -127.0f ? value : -127.0f;
  clamped = clamped < 127.0f ? clamped : 127.0f;
  // 1.5 * 2^23: the sum's low bits are the integer, rounded to nearest even.
  return static_cast<uint8_t>(BitsOf(AddRounded(clamped, 12582912.0f)) & 0xffu);
}

TANDEM_DEVICE float FloatOfInt8(uint32_t code) {
  return static_cast<float>(static_cast<int32_t>(static_cast<int8_t>(code)));
}

struct Int8Scale {
  float scale;
  float inverse;
};

// Of a row of int8, from the bits of its largest magnitude.
TANDEM_DEVICE Int8Scale ScaleOf(uint32_t top_bits) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  constexpr uint32_t kLargestBf16 = 0x7f7f0000u;  // 127 times its 127th part does not overflow
  constexpr uint32_t kSmallest = 0x04000000u;     // 2^-119: the scale is a normal number above it
  if (top_bits > kInfinity) {
    return {FloatOf(0x7fc00000u), 0.0f};
  }
  if (top_bits < kSmallest) {
    return {0.0f, 0.0f};
  }
  const float top = FloatOf(top_bits > kLargestBf16 ? kLargestBf16 : top_bits);
  return {DivRounded(top, 127.0f), DivRounded(127.0f, top)};
}

// The compute dtypes: an element in memory, and the number that it stands for.
struct Float32 {
  using Element = float;
  static TANDEM_METHOD float Load(const void* data, int64_t i) {
    return static_cast<const float*>(data)[i];
  }
  static TANDEM_METHOD void Store(void* data, int64_t i, float value) {
    static_cast<float*>(data)[i] = value;
  }
};
struct BFloat16 {
  using Element = uint16_t;
  static TANDEM_METHOD float Load(const void* data, int64_t i) {
    return FloatOfBFloat16(static_cast<const uint16_t*>(data)[i]);
  }
  static TANDEM_METHOD void Store(void* data, int64_t i, float value) {
    static_cast<uint16_t*>(data)[i] = BFloat16Of(value);
  }
};
struct Half {
  using Element = uint16_t;
  static TANDEM_METHOD float Load(const void* data, int64_t i) {
    return FloatOfHalf(static_cast<const uint16_t*>(data)[i]);
  }
  static TANDEM_METHOD void Store(void* data, int64_t i, float value) {
    static_cast<uint16_t*>(data)[i] = HalfOf(value);
  }
};

// Elements [first, first + 4) of a matrix in a compute dtype; `first` is a multiple of 4.
template <typename Type>
TANDEM_DEVICE void LoadFour(const void* data, int64_t first, float (&out)[4]) {
  if constexpr (sizeof(typename Type::Element) == sizeof(float)) {
    const auto words = LoadGlobal<Words4>(static_cast<const float*>(data) + first);
    out[0] = FloatOf(words.x);
    out[1] = FloatOf(words.y);
    out[2] = FloatOf(words.z);
    out[3] = FloatOf(words.w);
  } else {
    const auto words = LoadGlobal<Words2>(static_cast<const uint16_t*>(data) + first);
    const uint16_t halves[4] = {
        static_cast<uint16_t>(words.x), static_cast<uint16_t>(words.x >> 16),
        static_cast<uint16_t>(words.y), static_cast<uint16_t>(words.y >> 16)};
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      out[i] = Type::Load(halves, i);
    }
  }
}

template <typename Type>
TANDEM_DEVICE void StoreFour(void* data, int64_t first, const float (&values)[4]) {
  if constexpr (sizeof(typename Type::Element) == sizeof(float)) {
    const Words4 words{BitsOf(values[0]), BitsOf(values[1]), BitsOf(values[2]), BitsOf(values[3])};
    StoreGlobal(static_cast<float*>(data) + first, words);
  } else {
    uint16_t halves[4];
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      Type::Store(halves, i, values[i]);
    }
    const Words2 words{halves[0] | static_cast<uint32_t>(halves[1]) << 16,
                       halves[2] | static_cast<uint32_t>(halves[3]) << 16};
    StoreGlobal(static_cast<uint16_t*>(data) + first, words);
  }
}

// Two elements of a 16-bit type, the first in the low half.
TANDEM_DEVICE uint32_t PairOf(ElementType type, float low, float high) {
  return type == ElementType::kBFloat16
             ? BFloat16Of(low) | static_cast<uint32_t>(BFloat16Of(high)) << 16
             : HalfPairOf(low, high);
}

TANDEM_DEVICE void StoreElement(ElementType type, void* data, int64_t i, float value) {
  if (type == ElementType::kFloat32) {
    Float32::Store(data, i, value);
  } else if (type == ElementType::kBFloat16) {
    BFloat16::Store(data, i, value);
  } else {
    Half::Store(data, i, value);
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
