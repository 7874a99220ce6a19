#include "common/attention_kernels/isa/avx512_ops-inl.h"
// The operations come first: the body is written in terms of them.
#include "common/attention_kernels/paged_decode-inl.h"

namespace tandem::attention {
namespace {

// Pair products by VDPBF16PS: queries and probabilities are rounded to bfloat16 as well.
struct PairBf16Policy {
  using Element = uint16_t;
  using Weight = uint16_t;
  using Data = __m512bh;
  using Factor = __m512bh;
  static constexpr int kPerStep = 2;
  static int VChunk(int) { return kVChunkColumns; }
  static Data Load(const Element* p) { return reinterpret_cast<Data>(_mm512_loadu_si512(p)); }
  static Data LoadFirst(const Element* p) {
    const __m512i lower = _mm512_set1_epi32(0x0000ffff);
    return reinterpret_cast<Data>(_mm512_and_si512(_mm512_loadu_si512(p), lower));
  }
  static Factor Broadcast(const Weight* w) {
    int32_t pair;
    memcpy(&pair, w, sizeof(pair));
    return reinterpret_cast<Factor>(_mm512_set1_epi32(pair));
  }
  static Ops::Vec Dot(Ops::Vec acc, Data data, Factor w) { return _mm512_dpbf16_ps(acc, data, w); }
  static void StoreWeights(Weight* out, Ops::Vec p) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(p)));
  }
};

}  // namespace

AttendSegmentFn Avx512Bf16Kernel(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kFloat32:
      return AttendSegment<Float32Policy>;
    case DType::kBFloat16:
      return AttendSegment<PairBf16Policy>;
    default:
      return nullptr;
  }
}

}  // namespace tandem::attention
