#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/model_shape/model_shape.h"
#include "gpu_worker/device/cuda/cuda_device.h"

// Matrix products by cuBLASLt, which is found when the first of them is made.
namespace tandem::gpu_worker::device {

// out [rows, n] = in [rows, k] * weights [n, k] transposed, (+ out), (+ bias [n]); row-major.
struct CudaMatmulArgs {
  const std::byte* weights = nullptr;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  const float* bias = nullptr;  // null: none
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;
  DType in_dtype = DType::kBFloat16;  // of weights, too: float32, bfloat16 or float16
  DType out_dtype = DType::kFloat32;
  bool accumulate = false;
};

// One thread at a time. Sums are in float32; float32 inputs are multiplied as such (no TF32).
class CudaMatmul {
 public:
  // Whether the library is there: Unavailable with the reason.
  static absl::Status Find();
  // Unavailable when the library is not there.
  static absl::StatusOr<std::unique_ptr<CudaMatmul>> Create(CudaDevice& device);
  virtual ~CudaMatmul() = default;
  // False: the library has no way to add this bias; it was left out.
  virtual absl::StatusOr<bool> Run(CudaStream& stream, const CudaMatmulArgs& args) = 0;
};

}  // namespace tandem::gpu_worker::device
