#include "common/attention_kernels/isa/isa_kernels.h"

namespace tandem::attention {

#if defined(__x86_64__)

bool CpuHas(Isa isa) {
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  const bool avx512 =
      avx2 && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  }
  return false;
}

AttendSegmentFn KernelOf(Isa isa, DType kv_dtype) {
  switch (isa) {
    case Isa::kScalar:
      return ScalarKernel(kv_dtype);
    case Isa::kAvx2:
      return Avx2Kernel(kv_dtype);
    case Isa::kAvx512:
      return Avx512Kernel(kv_dtype);
    case Isa::kAvx512Bf16:
      return Avx512Bf16Kernel(kv_dtype);
  }
  return nullptr;
}

#else

bool CpuHas(Isa isa) { return isa == Isa::kScalar; }

AttendSegmentFn KernelOf(Isa isa, DType kv_dtype) {
  return isa == Isa::kScalar ? ScalarKernel(kv_dtype) : nullptr;
}

#endif

}  // namespace tandem::attention
