// Portable kernel: vectors are plain arrays, which the compiler maps to whatever the target has.
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace tandem::attention {
namespace {

struct Ops {
  struct Vec {
    float lane[16];
  };
  static constexpr int kRegisters = 12;
  static constexpr int kSums = 4;     // at once, of K
  static constexpr int kColumns = 2;  // vectors of V at once
  static constexpr bool kMayPrefetch = false;
  static constexpr int kMaxGroup = 2;  // more would be code without gain

  template <typename Function>
  static Vec Map(Function function) {
    Vec result;
    for (int i = 0; i < 16; ++i) {
      result.lane[i] = function(i);
    }
    return result;
  }
  static Vec Set1(float x) {
    return Map([x](int) { return x; });
  }
  static Vec Load(const float* p) {
    Vec result;
    memcpy(result.lane, p, sizeof(result.lane));
    return result;
  }
  static void Store(float* p, const Vec& v) { memcpy(p, v.lane, sizeof(v.lane)); }
  static Vec Add(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Vec Mul(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Vec MulAdd(const Vec& a, const Vec& b, const Vec& c) {
    return Map([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
  }
  // Max and Min give the second operand when either is NaN, as the x86 instructions do.
  static Vec Max(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Vec Min(const Vec& a, const Vec& b) {
    return Map([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static float ReduceMax(const Vec& v) {
    float result = v.lane[0];
    for (int i = 1; i < 16; ++i) {
      result = v.lane[i] > result ? v.lane[i] : result;
    }
    return result;
  }
  static float ReduceAdd(const Vec& v) {
    float half[8];
    for (int i = 0; i < 8; ++i) half[i] = v.lane[i] + v.lane[i + 8];
    for (int i = 0; i < 4; ++i) half[i] += half[i + 4];
    return (half[0] + half[2]) + (half[1] + half[3]);
  }
  // Adding and taking away 1.5 * 2^23 rounds to nearest for the small values that occur here.
  static Vec Round(const Vec& v) {
    return Map([&](int i) { return (v.lane[i] + 12582912.0f) - 12582912.0f; });
  }
  static Vec ScaleByPowerOf2(const Vec& v, const Vec& n) {
    return Map([&](int i) {
      // NaN has no integer; its product is NaN whatever the factor.
      const int exponent = n.lane[i] >= -126.0f ? static_cast<int>(n.lane[i]) : -126;
      const uint32_t bits = static_cast<uint32_t>(exponent + 127) << 23;
      float factor;
      memcpy(&factor, &bits, sizeof(factor));
      return v.lane[i] * factor;
    });
  }
  static Vec ZeroWhereBelow(const Vec& v, const Vec& x, float bound) {
    return Map([&](int i) { return x.lane[i] < bound ? 0.0f : v.lane[i]; });
  }
  static Vec KeepFirst(const Vec& v, int count, float other) {
    return Map([&](int i) { return i < count ? v.lane[i] : other; });
  }
  static Vec LoadHalfWords(const uint16_t* p, int first) {
    return Map([=](int i) {
      const uint32_t bits = static_cast<uint32_t>(p[2 * i + first]) << 16;
      float value;
      memcpy(&value, &bits, sizeof(value));
      return value;
    });
  }
  static Vec LoadEvenBf16(const uint16_t* p) { return LoadHalfWords(p, 0); }
  static Vec LoadOddBf16(const uint16_t* p) { return LoadHalfWords(p, 1); }
  static Vec LoadBf16(const uint16_t* p) {
    return Map([=](int i) {
      const uint32_t bits = static_cast<uint32_t>(p[i]) << 16;
      float value;
      memcpy(&value, &bits, sizeof(value));
      return value;
    });
  }
  static float FloatOfHalf(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t magnitude = half & 0x7fffu;
    uint32_t bits = (magnitude << 13) + (112u << 23);
    if (magnitude >= 0x7c00u) {
      bits = (magnitude << 13) | 0x7f800000u;
    } else if (magnitude < 0x400u) {
      const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
      memcpy(&bits, &subnormal, sizeof(bits));
    }
    bits |= sign;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  }
  static Vec LoadHalf(const uint16_t* p) {
    return Map([=](int i) { return FloatOfHalf(p[i]); });
  }
  static uint16_t Bf16OfFloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
      return static_cast<uint16_t>((bits >> 16) | 0x40u);
    }
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  }
  // Round to nearest even; what is too large becomes infinity.
  static uint16_t HalfOfFloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u;
    } else if (magnitude >= 0x47800000u) {
      half = 0x7c00u;
    } else if (magnitude < 0x38800000u) {
      // Below the normal range: adding 0.5 leaves the rounded multiple of 2^-24 in the low bits.
      float shifted;
      memcpy(&shifted, &magnitude, sizeof(shifted));
      shifted += 0.5f;
      memcpy(&half, &shifted, sizeof(half));
      half -= 0x3f000000u;
    } else {
      half = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
    }
    return static_cast<uint16_t>(sign | half);
  }
  static void StoreBf16(uint16_t* p, const Vec& v) {
    for (int i = 0; i < 16; ++i) p[i] = Bf16OfFloat(v.lane[i]);
  }
  static void StoreHalf(uint16_t* p, const Vec& v) {
    for (int i = 0; i < 16; ++i) p[i] = HalfOfFloat(v.lane[i]);
  }
  // Byte kByte of each lane of 32 bits.
  template <int kByte>
  static Vec LoadInt8(const int8_t* p) {
    return Map([=](int i) { return static_cast<float>(p[4 * i + kByte]); });
  }
  static constexpr float kFp8Factor = 1.0f;
  static float FloatOfFp8(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu;
    uint32_t bits = (magnitude << 20) + (120u << 23);
    if (magnitude == 0x7f) {
      bits = 0x7fc00000u;
    } else if (magnitude < 8) {
      const float subnormal = static_cast<float>(magnitude) * 0x1p-9f;
      memcpy(&bits, &subnormal, sizeof(bits));
    }
    bits |= static_cast<uint32_t>(code & 0x80u) << 24;
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
  }
  // Bytes kByte and kByte + 2 of each lane of 32 bits; kByte is 0 or 1.
  template <int kByte>
  static void LoadFp8(const uint8_t* p, Vec* lower, Vec* upper) {
    *lower = Map([=](int i) { return FloatOfFp8(p[4 * i + kByte]); });
    *upper = Map([=](int i) { return FloatOfFp8(p[4 * i + kByte + 2]); });
  }
};

}  // namespace
}  // namespace tandem::attention

#include "common/attention_kernels/paged_decode-inl.h"
#include "common/attention_kernels/stream_read-inl.h"

namespace tandem::attention {

AttendSegmentFn ScalarKernel(DType kv_dtype) { return WidenedKernel(kv_dtype); }

StoreRowFn ScalarStoreRow() { return StoreRowByOps; }

std::span<const StreamReadForm> ScalarStreamReads() { return kStreamReadForms; }

}  // namespace tandem::attention
