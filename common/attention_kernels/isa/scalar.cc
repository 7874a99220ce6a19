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
  static constexpr int kAccumulators = 4;
  static constexpr int kMaxGroup = 4;

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
};

}  // namespace
}  // namespace tandem::attention

#include "common/attention_kernels/paged_decode-inl.h"

namespace tandem::attention {

AttendSegmentFn ScalarKernel(DType kv_dtype) {
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
