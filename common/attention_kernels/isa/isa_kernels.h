#pragma once

#include "common/attention_kernels/paged_decode.h"

namespace tandem::attention {

// The kernel of one instruction set for a KV dtype; null where there is none. Each is defined in
// the file that is compiled for that instruction set.
AttendSegmentFn ScalarKernel(DType kv_dtype);
AttendSegmentFn Avx2Kernel(DType kv_dtype);
AttendSegmentFn Avx512Kernel(DType kv_dtype);
AttendSegmentFn Avx512Bf16Kernel(DType kv_dtype);

// Whether this CPU has `isa` and its kernel was compiled in.
bool CpuHas(Isa isa);
AttendSegmentFn KernelOf(Isa isa, DType kv_dtype);

}  // namespace tandem::attention
