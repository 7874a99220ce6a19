#pragma once

#include <cstdint>

namespace tandem::gpu_worker::ops::cuda {

struct FaultyParams {
  int32_t* out = nullptr;
  const int32_t* in = nullptr;
  int32_t step = 0;
};

}  // namespace tandem::gpu_worker::ops::cuda
