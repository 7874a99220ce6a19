#include "common/kv_layout/sub_tile.h"

namespace tandem::kv {

const SubTileKernels& BestSubTileKernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return Avx512SubTileKernels();
  }
  if (__builtin_cpu_supports("avx2")) {
    return Avx2SubTileKernels();
  }
#endif
  return BaselineSubTileKernels();
}

}  // namespace tandem::kv
