#include "common/attention_kernels/isa/avx512_ops-inl.h"
// The operations come first: the body is written in terms of them.
#include "common/attention_kernels/paged_decode-inl.h"

namespace tandem::attention {

AttendSegmentFn Avx512Kernel(DType kv_dtype) {
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
