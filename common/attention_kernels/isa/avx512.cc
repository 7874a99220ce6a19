#include "common/attention_kernels/isa/avx512_ops-inl.h"
// The operations come first: the body is written in terms of them.
#include "common/attention_kernels/paged_decode-inl.h"
#include "common/attention_kernels/stream_read-inl.h"

namespace tandem::attention {

AttendSegmentFn Avx512Kernel(DType kv_dtype) { return WidenedKernel(kv_dtype); }

StoreRowFn Avx512StoreRow() { return StoreRowByOps; }

std::span<const StreamReadForm> Avx512StreamReads() { return kStreamReadForms; }

}  // namespace tandem::attention
