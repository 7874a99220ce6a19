// SVE with vectors of 256 bits (-msve-vector-bits=256) and its pair products of bfloat16.
#include <arm_sve.h>
#include <stdint.h>

namespace tandem::attention {
namespace {

typedef svfloat32_t Float8 __attribute__((arm_sve_vector_bits(256)));
typedef svuint32_t Word8 __attribute__((arm_sve_vector_bits(256)));
typedef svint32_t Int8x32 __attribute__((arm_sve_vector_bits(256)));
typedef svbfloat16_t Pair8 __attribute__((arm_sve_vector_bits(256)));

// 16 lanes are two registers.
struct Ops {
  struct Vec {
    Float8 low;
    Float8 high;
  };
  // 32 registers are 16 of these vectors.
  static constexpr int kRegisters = 16;
  static constexpr int kSums = 10;    // at once, of K
  static constexpr int kColumns = 2;  // vectors of V at once
  static constexpr bool kMayPrefetch = false;
  static constexpr int kMaxGroup = 5;

  static svbool_t All() { return svptrue_b32(); }
  static Vec Set1(float x) { return {svdup_f32(x), svdup_f32(x)}; }
  static Vec Load(const float* p) { return {svld1_f32(All(), p), svld1_f32(All(), p + 8)}; }
  static void Store(float* p, Vec v) {
    svst1_f32(All(), p, v.low);
    svst1_f32(All(), p + 8, v.high);
  }
  static Vec Add(Vec a, Vec b) {
    return {svadd_f32_x(All(), a.low, b.low), svadd_f32_x(All(), a.high, b.high)};
  }
  static Vec Mul(Vec a, Vec b) {
    return {svmul_f32_x(All(), a.low, b.low), svmul_f32_x(All(), a.high, b.high)};
  }
  static Vec MulAdd(Vec a, Vec b, Vec c) {
    return {svmla_f32_x(All(), c.low, a.low, b.low), svmla_f32_x(All(), c.high, a.high, b.high)};
  }
  // The second operand when either is NaN, as on x86; the instructions of their own spread NaN.
  static Float8 Max8(Float8 a, Float8 b) { return svsel_f32(svcmpgt_f32(All(), a, b), a, b); }
  static Float8 Min8(Float8 a, Float8 b) { return svsel_f32(svcmplt_f32(All(), a, b), a, b); }
  static Vec Max(Vec a, Vec b) { return {Max8(a.low, b.low), Max8(a.high, b.high)}; }
  static Vec Min(Vec a, Vec b) { return {Min8(a.low, b.low), Min8(a.high, b.high)}; }
  static float ReduceMax(Vec v) { return svmaxnmv_f32(All(), Max8(v.low, v.high)); }
  static float ReduceAdd(Vec v) { return svaddv_f32(All(), svadd_f32_x(All(), v.low, v.high)); }
  static Vec Round(Vec v) { return {svrintn_f32_x(All(), v.low), svrintn_f32_x(All(), v.high)}; }
  static Float8 Scale8(Float8 v, Float8 n) {
    return svscale_f32_x(All(), v, svcvt_s32_f32_x(All(), n));
  }
  static Vec ScaleByPowerOf2(Vec v, Vec n) {
    return {Scale8(v.low, n.low), Scale8(v.high, n.high)};
  }
  static Float8 Zero8(Float8 v, Float8 x, float bound) {
    return svsel_f32(svcmplt_n_f32(All(), x, bound), svdup_f32(0.0f), v);
  }
  static Vec ZeroWhereBelow(Vec v, Vec x, float bound) {
    return {Zero8(v.low, x.low, bound), Zero8(v.high, x.high, bound)};
  }
  static Vec KeepFirst(Vec v, int count, float other) {
    return {svsel_f32(svwhilelt_b32_s32(0, count), v.low, svdup_f32(other)),
            svsel_f32(svwhilelt_b32_s32(8, count), v.high, svdup_f32(other))};
  }
  static Float8 EvenBf16(const uint16_t* p) {
    return svreinterpret_f32_u32(
        svlsl_n_u32_x(All(), svld1_u32(All(), reinterpret_cast<const uint32_t*>(p)), 16));
  }
  static Float8 OddBf16(const uint16_t* p) {
    return svreinterpret_f32_u32(
        svand_n_u32_x(All(), svld1_u32(All(), reinterpret_cast<const uint32_t*>(p)), 0xffff0000u));
  }
  static Vec LoadEvenBf16(const uint16_t* p) { return {EvenBf16(p), EvenBf16(p + 16)}; }
  static Vec LoadOddBf16(const uint16_t* p) { return {OddBf16(p), OddBf16(p + 16)}; }
  // Eight words, each in the lower half of its lane.
  static Word8 Words(const void* p) { return svld1uh_u32(All(), static_cast<const uint16_t*>(p)); }
  static Float8 Bf16Of(Word8 words) {
    return svreinterpret_f32_u32(svlsl_n_u32_x(All(), words, 16));
  }
  static Vec LoadBf16(const uint16_t* p) { return {Bf16Of(Words(p)), Bf16Of(Words(p + 8))}; }
  static Float8 HalfOf(Word8 words) { return svcvt_f32_f16_x(All(), svreinterpret_f16_u32(words)); }
  static Vec LoadHalf(const uint16_t* p) { return {HalfOf(Words(p)), HalfOf(Words(p + 8))}; }
  // Each result in the lower half of its lane, rounded to nearest even; NaN stays NaN.
  static Word8 WordsOfBf16(Float8 v) { return svreinterpret_u32_bf16(svcvt_bf16_f32_x(All(), v)); }
  static void StoreBf16(uint16_t* p, Vec v) {
    svst1h_u32(All(), p, WordsOfBf16(v.low));
    svst1h_u32(All(), p + 8, WordsOfBf16(v.high));
  }
  static void StoreHalf(uint16_t* p, Vec v) {
    svst1h_u32(All(), p, svreinterpret_u32_f16(svcvt_f16_f32_x(All(), v.low)));
    svst1h_u32(All(), p + 8, svreinterpret_u32_f16(svcvt_f16_f32_x(All(), v.high)));
  }
  static Word8 Lanes(const void* p) { return svld1_u32(All(), static_cast<const uint32_t*>(p)); }
  template <int kByte>
  static Float8 Int8Of(const int8_t* p) {
    const Int8x32 lanes = svreinterpret_s32_u32(Lanes(p));
    return svcvt_f32_s32_x(All(),
                           svasr_n_s32_x(All(), svlsl_n_s32_x(All(), lanes, 24 - 8 * kByte), 24));
  }
  // Byte kByte of each lane of 32 bits.
  template <int kByte>
  static Vec LoadInt8(const int8_t* p) {
    return {Int8Of<kByte>(p), Int8Of<kByte>(p + 32)};
  }
  // E4M3 in the upper bits of half precision is the value times 2^-8, subnormals included.
  static constexpr float kFp8Factor = 256.0f;
  static Float8 Fp8Of(Word8 codes) {  // in bits 8 to 15
    const Word8 magnitude = svand_n_u32_x(All(), codes, 0x7f00u);
    const Word8 sign = svand_n_u32_x(All(), codes, 0x8000u);
    const Word8 half = svorr_u32_x(All(), svlsr_n_u32_x(All(), magnitude, 1), sign);
    return HalfOf(svsel_u32(svcmpeq_n_u32(All(), magnitude, 0x7f00u), svdup_u32(0x7e00u), half));
  }
  // Bytes kByte and kByte + 2 of each lane of 32 bits; kByte is 0 or 1.
  template <int kByte>
  static void LoadFp8(const uint8_t* p, Vec* lower, Vec* upper) {
    const Word8 first = Lanes(p);
    const Word8 second = Lanes(p + 32);
    *lower = {Fp8Of(svlsl_n_u32_x(All(), first, 8 - 8 * kByte)),
              Fp8Of(svlsl_n_u32_x(All(), second, 8 - 8 * kByte))};
    *upper = {Fp8Of(svlsr_n_u32_x(All(), first, 8 + 8 * kByte)),
              Fp8Of(svlsr_n_u32_x(All(), second, 8 + 8 * kByte))};
  }
};

}  // namespace
}  // namespace tandem::attention

// The operations come first: the body is written in terms of them.
#include "common/attention_kernels/paged_decode-inl.h"
#include "common/attention_kernels/stream_read-inl.h"

namespace tandem::attention {
namespace {

// Queries and probabilities are rounded to bfloat16 as well.
struct SveBf16Policy : FloatSums {
  using Element = uint16_t;
  using Weight = uint16_t;
  struct Data {
    Pair8 low;
    Pair8 high;
  };
  using Factor = Pair8;
  static constexpr int kPerLane = 2;
  static constexpr bool kScales = false;
  static constexpr float kFactor = 1.0f;
  static int VChunk(int) { return kChunkColumns; }
  static Pair8 Pairs(const Element* p) { return svreinterpret_bf16_u32(Ops::Lanes(p)); }
  template <int kPart>
  static Data Load(const Element* p) {
    return {Pairs(p), Pairs(p + 16)};
  }
  template <int kPart>
  static Factor Broadcast(const Weight* w) {
    uint32_t pair;
    memcpy(&pair, w, sizeof(pair));
    return svreinterpret_bf16_u32(svdup_u32(pair));
  }
  static Acc Dot(Acc acc, const Data& data, Factor w) {
    return {svbfdot_f32(acc.low, data.low, w), svbfdot_f32(acc.high, data.high, w)};
  }
  static void StoreWeights(Weight* out, Ops::Vec p) { Ops::StoreBf16(out, p); }
};

}  // namespace

AttendSegmentFn Sve256Kernel(DType kv_dtype) {
  return kv_dtype == DType::kBFloat16 ? AttendSegment<SveBf16Policy> : WidenedKernel(kv_dtype);
}

StoreRowFn Sve256StoreRow() { return StoreRowByOps; }

std::span<const StreamReadForm> Sve256StreamReads() { return kStreamReadForms; }

}  // namespace tandem::attention
