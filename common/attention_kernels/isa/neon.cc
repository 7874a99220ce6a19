#include "common/attention_kernels/isa/neon_ops-inl.h"
// The operations come first: the body is written in terms of them.
#include "common/attention_kernels/paged_decode-inl.h"
#include "common/attention_kernels/stream_read-inl.h"

namespace tandem::attention {

AttendSegmentFn NeonKernel(DType kv_dtype) { return WidenedKernel(kv_dtype); }

StoreRowFn NeonStoreRow() { return StoreRowByOps; }

std::span<const StreamReadForm> NeonStreamReads() { return kStreamReadForms; }

}  // namespace tandem::attention
