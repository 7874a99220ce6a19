#include "gpu_worker/ops/host/kernels.h"

namespace tandem::gpu_worker::ops::host {

const Kernels& BestKernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Avx512Kernels();
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return Avx2Kernels();
  }
#endif
  return BaselineKernels();
}

}  // namespace tandem::gpu_worker::ops::host
