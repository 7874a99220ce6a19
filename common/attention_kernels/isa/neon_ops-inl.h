#pragma once

#include <arm_neon.h>
#include <stdint.h>

namespace tandem::attention {
namespace {

// 16 lanes are four registers.
struct Ops {
  struct Vec {
    float32x4_t part[4];
  };
  // 32 registers are 8 of these vectors.
  static constexpr int kRegisters = 8;
  static constexpr int kSums = 5;     // at once, of K
  static constexpr int kColumns = 1;  // vectors of V at once
  static constexpr bool kMayPrefetch = false;
  static constexpr int kMaxGroup = 5;

  template <typename Function>
  static Vec Map(Function function) {
    return {{function(0), function(1), function(2), function(3)}};
  }
  static Vec Set1(float x) {
    return Map([x](int) { return vdupq_n_f32(x); });
  }
  static Vec Load(const float* p) {
    return Map([p](int i) { return vld1q_f32(p + 4 * i); });
  }
  static void Store(float* p, Vec v) {
    for (int i = 0; i < 4; ++i) {
      vst1q_f32(p + 4 * i, v.part[i]);
    }
  }
  static Vec Add(Vec a, Vec b) {
    return Map([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
  }
  static Vec Mul(Vec a, Vec b) {
    return Map([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
  }
  static Vec MulAdd(Vec a, Vec b, Vec c) {
    return Map([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
  }
  // The second operand when either is NaN, as on x86; the instructions of their own spread NaN.
  static float32x4_t Max4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static float32x4_t Min4(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
  static Vec Max(Vec a, Vec b) {
    return Map([&](int i) { return Max4(a.part[i], b.part[i]); });
  }
  static Vec Min(Vec a, Vec b) {
    return Map([&](int i) { return Min4(a.part[i], b.part[i]); });
  }
  static float ReduceMax(Vec v) {
    return vmaxnmvq_f32(Max4(Max4(v.part[0], v.part[1]), Max4(v.part[2], v.part[3])));
  }
  static float ReduceAdd(Vec v) {
    return vaddvq_f32(vaddq_f32(vaddq_f32(v.part[0], v.part[1]), vaddq_f32(v.part[2], v.part[3])));
  }
  static Vec Round(Vec v) {
    return Map([&](int i) { return vrndnq_f32(v.part[i]); });
  }
  static Vec ScaleByPowerOf2(Vec v, Vec n) {
    return Map([&](int i) {
      const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n.part[i]), vdupq_n_s32(127));
      return vmulq_f32(v.part[i], vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
    });
  }
  static float32x4_t Select(uint32x4_t where, float32x4_t a, float32x4_t b) {
    return vbslq_f32(where, a, b);
  }
  static Vec ZeroWhereBelow(Vec v, Vec x, float bound) {
    return Map([&](int i) {
      return Select(vcltq_f32(x.part[i], vdupq_n_f32(bound)), vdupq_n_f32(0.0f), v.part[i]);
    });
  }
  static Vec KeepFirst(Vec v, int count, float other) {
    const int32x4_t lanes = {0, 1, 2, 3};
    return Map([&](int i) {
      const uint32x4_t keep = vcgtq_s32(vdupq_n_s32(count - 4 * i), lanes);
      return Select(keep, v.part[i], vdupq_n_f32(other));
    });
  }
  static uint32x4_t LoadPairs(const uint16_t* p) { return vreinterpretq_u32_u16(vld1q_u16(p)); }
  static Vec LoadEvenBf16(const uint16_t* p) {
    return Map([p](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(LoadPairs(p + 8 * i), 16)); });
  }
  static Vec LoadOddBf16(const uint16_t* p) {
    const uint32x4_t upper = vdupq_n_u32(0xffff0000u);
    return Map(
        [=](int i) { return vreinterpretq_f32_u32(vandq_u32(LoadPairs(p + 8 * i), upper)); });
  }
  static Vec LoadBf16(const uint16_t* p) {
    return Map([p](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
  }
  static Vec LoadHalf(const uint16_t* p) {
    return Map([p](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
  }
  // Rounded to nearest even; NaN stays NaN.
  static uint16x4_t Bf16Of(float32x4_t v) {
    const uint32x4_t bits = vreinterpretq_u32_f32(v);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x00400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(v, v), rounded, quiet), 16);
  }
  static void StoreBf16(uint16_t* p, Vec v) {
    for (int i = 0; i < 4; ++i) {
      vst1_u16(p + 4 * i, Bf16Of(v.part[i]));
    }
  }
  static void StoreHalf(uint16_t* p, Vec v) {
    for (int i = 0; i < 4; ++i) {
      vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(v.part[i])));
    }
  }
  // Byte kByte of each lane of 32 bits.
  template <int kByte>
  static Vec LoadInt8(const int8_t* p) {
    return Map([p](int i) {
      const int32x4_t lanes = vreinterpretq_s32_s8(vld1q_s8(p + 16 * i));
      return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(lanes, 24 - 8 * kByte), 24));
    });
  }
  // E4M3 in the upper bits of half precision is the value times 2^-8, subnormals included.
  static constexpr float kFp8Factor = 256.0f;
  static uint16x8_t HalfOfFp8(uint16x8_t codes) {  // in the upper bytes
    const uint16x8_t all = vdupq_n_u16(0x7f00);
    const uint16x8_t magnitude = vandq_u16(codes, all);
    const uint16x8_t sign = vandq_u16(codes, vdupq_n_u16(0x8000));
    const uint16x8_t half = vorrq_u16(vshrq_n_u16(magnitude, 1), sign);
    return vbslq_u16(vceqq_u16(magnitude, all), vdupq_n_u16(0x7e00), half);
  }
  template <int kByte>
  static uint16x8_t LoadHalves(const uint8_t* p) {
    const uint16x8_t codes = vreinterpretq_u16_u8(vld1q_u8(p));
    return HalfOfFp8(kByte == 0 ? vshlq_n_u16(codes, 8) : codes);
  }
  static Vec FloatOfHalves(uint16x8_t first, uint16x8_t second) {
    const float16x8_t a = vreinterpretq_f16_u16(first);
    const float16x8_t b = vreinterpretq_f16_u16(second);
    return {{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)),
             vcvt_high_f32_f16(b)}};
  }
  // Bytes kByte and kByte + 2 of each lane of 32 bits; kByte is 0 or 1.
  template <int kByte>
  static void LoadFp8(const uint8_t* p, Vec* lower, Vec* upper) {
    const uint16x8_t halves[4] = {LoadHalves<kByte>(p), LoadHalves<kByte>(p + 16),
                                  LoadHalves<kByte>(p + 32), LoadHalves<kByte>(p + 48)};
    *lower = FloatOfHalves(vuzp1q_u16(halves[0], halves[1]), vuzp1q_u16(halves[2], halves[3]));
    *upper = FloatOfHalves(vuzp2q_u16(halves[0], halves[1]), vuzp2q_u16(halves[2], halves[3]));
  }
};

}  // namespace
}  // namespace tandem::attention
