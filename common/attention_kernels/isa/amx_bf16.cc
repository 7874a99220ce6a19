#include "common/attention_kernels/isa/avx512_ops-inl.h"
// The operations come first: the body is written in terms of them.
#include "common/attention_kernels/amx_int8-inl.h"
#include "common/attention_kernels/paged_decode-inl.h"

namespace tandem::attention {
namespace {

template <class Policy>
void AttendSegmentByAmx(const kv::PoolGeometry& geometry, const SegmentArgs& args) {
  if (args.group_size <= kAmxMaxGroup) {
    AmxConfigure(args.group_size);
  }
  AttendSegment<Policy>(geometry, args);
  // Live tile registers make every context switch dearer and keep the core from its deeper sleep.
  _tile_release();
}

void AttendInt8Segment(const kv::PoolGeometry& geometry, const SegmentArgs& args) {
  AmxConfigureInt8(args.group_size / AmxInt8Rounds(args.group_size));
  AttendSegment<AmxInt8Policy>(geometry, args);
  _tile_release();
}

}  // namespace

AttendSegmentFn AmxBf16Kernel(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kBFloat16:
      return AttendSegmentByAmx<AmxBf16Policy>;
    case DType::kInt8:
      return AttendInt8Segment;
    case DType::kFloat8E4M3:
      return AttendSegmentByAmx<AmxBytePolicy<Fp8Widener>>;
    default:
      return Avx512Bf16Kernel(kv_dtype);
  }
}

}  // namespace tandem::attention
