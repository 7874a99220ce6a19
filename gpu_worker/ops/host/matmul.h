#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/model_shape/model_shape.h"

// Matrix products with packed weights: by oneDNN, but bfloat16 by the AMX unit where there is one,
// and by AVX2 where there is no AVX-512.
namespace tandem::gpu_worker::ops::host {

// Where element (n, k) of a weight matrix [n, k] lies: k_offset[k] + n_offset[n] elements from the
// start (blocked formats are separable).
struct PackedFormat {
  enum class Order { kOneDnn, kAmx, kAvx2 };  // chosen by oneDNN; of amx_matmul.h; of avx2_matmul.h
  Order order = Order::kOneDnn;
  DType dtype = DType::kFloat32;
  int64_t n = 0;
  int64_t k = 0;
  size_t bytes = 0;  // padding included, which must be zero
  std::vector<int64_t> k_offset;
  std::vector<int64_t> n_offset;
};

// One format for all row counts. Throws dnnl::error.
PackedFormat ChoosePackedFormat(DType dtype, int64_t n, int64_t k);
// The one that oneDNN chooses, also where another is used.
PackedFormat OneDnnPackedFormat(DType dtype, int64_t n, int64_t k);

struct MatmulCall {
  const PackedFormat* format = nullptr;
  const std::byte* weights = nullptr;
  const float* bias = nullptr;    // [n] or null
  const std::byte* in = nullptr;  // [rows, k] in the weights' dtype
  std::byte* out = nullptr;       // [rows, n]
  int64_t rows = 0;
  DType out_dtype = DType::kFloat32;
  bool accumulate = false;  // out += instead of out =; float32 only
};

// Row counts that have primitives of their own: exact up to 16, then within an eighth above.
int64_t RowBucket(int64_t rows);

// oneDNN's primitives by shape, the least recently used dropped past a bound. One thread.
class MatmulCache {
 public:
  MatmulCache();
  ~MatmulCache();
  // May read and write RowBucket(rows) rows. Throws dnnl::error.
  void Run(const MatmulCall& call);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

bool RunsBFloat16();
// Faster than float32.
bool HasFastBFloat16();

}  // namespace tandem::gpu_worker::ops::host
