#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/ops/cuda/kernels.h"

// What the launchers share.
namespace tandem::gpu_worker::ops::cuda {

inline constexpr int64_t kMaxGridX = 2147483647;
inline constexpr int64_t kMaxGridYz = 65535;

// Kernels of one operator by compute dtype.
struct KernelNames {
  const char* float32;
  const char* bfloat16;
  const char* float16;
  const char* Of(ElementType compute) const {
    return compute == ElementType::kFloat32    ? float32
           : compute == ElementType::kBFloat16 ? bfloat16
           : compute == ElementType::kFloat16  ? float16
                                               : nullptr;
  }
};

// InvalidArgument naming the field unless `low` <= `value` <= `high`.
inline absl::Status InRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat("CUDA kernel: ", field, " is ", value, ", allowed: ", low, " to ", high));
  }
  return absl::OkStatus();
}

inline absl::Status MultipleOf(const char* field, int64_t value, int64_t factor) {
  if (value % factor != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("CUDA kernel: ", field, " is ", value, ", not a multiple of ", factor));
  }
  return absl::OkStatus();
}

// Where to launch; a kernel that does not exist for a compute dtype has a null name.
struct Launcher {
  KernelLauncher& launcher;
  StreamHandle stream;

  template <typename Params>
  absl::Status Run(const char* kernel, const LaunchShape& shape, const Params& params) const {
    if (kernel == nullptr) {
      return absl::InvalidArgumentError(
          "CUDA kernel: the compute dtype is not one of float32, bfloat16, float16");
    }
    return launcher.Launch(kernel, shape, stream, &params, sizeof(params));
  }
};

inline LaunchShape Shape(int64_t x, int64_t y, int64_t z, uint32_t threads, int64_t shared = 0) {
  return {{static_cast<uint32_t>(x), static_cast<uint32_t>(y), static_cast<uint32_t>(z)},
          {threads, 1, 1},
          static_cast<uint32_t>(shared)};
}

}  // namespace tandem::gpu_worker::ops::cuda
