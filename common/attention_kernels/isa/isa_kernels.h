#pragma once

#include "common/attention_kernels/paged_decode.h"
#include "common/attention_kernels/stream_read.h"

namespace tandem::attention {

// The kernel of one instruction set for a KV dtype; null where there is none. Each is defined in
// the file that is compiled for that instruction set.
AttendSegmentFn ScalarKernel(DType kv_dtype);
AttendSegmentFn Avx2Kernel(DType kv_dtype);
AttendSegmentFn Avx512Kernel(DType kv_dtype);
AttendSegmentFn Avx512Bf16Kernel(DType kv_dtype);
AttendSegmentFn AmxBf16Kernel(DType kv_dtype);
AttendSegmentFn NeonKernel(DType kv_dtype);
AttendSegmentFn NeonBf16Kernel(DType kv_dtype);
AttendSegmentFn Sve256Kernel(DType kv_dtype);

StoreRowFn ScalarStoreRow();
StoreRowFn Avx2StoreRow();
StoreRowFn Avx512StoreRow();
StoreRowFn NeonStoreRow();
StoreRowFn Sve256StoreRow();
std::span<const StreamReadForm> ScalarStreamReads();
std::span<const StreamReadForm> Avx2StreamReads();
std::span<const StreamReadForm> Avx512StreamReads();
std::span<const StreamReadForm> NeonStreamReads();
std::span<const StreamReadForm> Sve256StreamReads();

// What pays on this CPU, never kTable; measured (docs/cpu-attention.md).
Prefetch PrefetchRule(DType kv_dtype, int group_size, int block_tokens);

// Whether this CPU has `isa` and its kernel was compiled in.
bool CpuHas(Isa isa);
AttendSegmentFn KernelOf(Isa isa, DType kv_dtype);

}  // namespace tandem::attention
