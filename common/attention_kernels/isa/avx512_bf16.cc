#include "common/attention_kernels/isa/avx512_ops-inl.h"
// The operations come first: the body is written in terms of them.
#include "common/attention_kernels/paged_decode-inl.h"
#include "common/attention_kernels/pair_policies-inl.h"

namespace tandem::attention {

AttendSegmentFn Avx512Bf16Kernel(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kBFloat16:
      return AttendSegment<PairBf16Policy>;
    case DType::kInt8:
      return AttendSegment<PairInt8Policy>;
    case DType::kFloat8E4M3:
      return AttendSegment<PairFp8Policy>;
    default:
      return WidenedKernel(kv_dtype);
  }
}

}  // namespace tandem::attention
