// Pair products of bfloat16 (FEAT_BF16).
#include "common/attention_kernels/isa/neon_ops-inl.h"
// The operations come first: the body is written in terms of them.
#include "common/attention_kernels/paged_decode-inl.h"

namespace tandem::attention {
namespace {

// Queries and probabilities are rounded to bfloat16 as well.
struct NeonBf16Policy : FloatSums {
  using Element = uint16_t;
  using Weight = uint16_t;
  struct Data {
    bfloat16x8_t part[4];
  };
  using Factor = bfloat16x8_t;
  static constexpr int kPerLane = 2;
  static constexpr bool kScales = false;
  static constexpr float kFactor = 1.0f;
  static int VChunk(int) { return kChunkColumns; }
  template <int kPart>
  static Data Load(const Element* p) {
    const auto load = [p](int i) { return vreinterpretq_bf16_u32(Ops::LoadPairs(p + 8 * i)); };
    return {{load(0), load(1), load(2), load(3)}};
  }
  template <int kPart>
  static Factor Broadcast(const Weight* w) {
    uint32_t pair;
    memcpy(&pair, w, sizeof(pair));
    return vreinterpretq_bf16_u32(vdupq_n_u32(pair));
  }
  static Acc Dot(Acc acc, const Data& data, Factor w) {
    return Ops::Map([&](int i) { return vbfdotq_f32(acc.part[i], data.part[i], w); });
  }
  static void StoreWeights(Weight* out, Ops::Vec p) {
    for (int i = 0; i < 4; ++i) {
      vst1_u16(out + 4 * i, vreinterpret_u16_bf16(vcvt_bf16_f32(p.part[i])));
    }
  }
};

}  // namespace

AttendSegmentFn NeonBf16Kernel(DType kv_dtype) {
  return kv_dtype == DType::kBFloat16 ? AttendSegment<NeonBf16Policy> : WidenedKernel(kv_dtype);
}

}  // namespace tandem::attention
