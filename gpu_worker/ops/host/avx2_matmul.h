#pragma once

#include <cstddef>
#include <cstdint>

// Matrix products in bfloat16 on CPUs with AVX2 and FMA but without AVX-512, whose bfloat16 oneDNN
// does not multiply. Plain values only: the code is compiled for those instructions and shares
// nothing with other files.
namespace tandem::gpu_worker::ops::host {

// Weights [n, k] lie in panels of 16 columns n, padded with zeros: k lines of 32 bytes, in each the
// columns 0, 8, 1, 9, ... 7, 15, so that a shift widens eight of them to float32 and a mask the
// others.
inline constexpr int64_t kAvx2PanelColumns = 16;
// Rows of a call; callers cut longer inputs.
inline constexpr int64_t kAvx2MostRows = 240;

struct Avx2Matmul {
  const uint16_t* weights = nullptr;
  const float* bias = nullptr;   // [n] or null
  const uint16_t* in = nullptr;  // [rows, k]
  float* widened = nullptr;      // [rows, k]: scratch
  void* out = nullptr;           // [rows, n] float32, or bfloat16
  int64_t rows = 0;              // at most kAvx2MostRows
  int64_t n = 0;
  int64_t k = 0;
  bool out_bf16 = false;
  bool accumulate = false;  // out += instead of out =; float32 only
};

// First: elements [first, last) of the input to float32. Threads share them out.
void Avx2Widen(const Avx2Matmul& call, int64_t first, int64_t last);
// Then, when all of them are: panels [first, last) of ceil(n / kAvx2PanelColumns). Sums are
// float32, in the order of k but for calls of up to three rows. This CPU has AVX2 and FMA.
void Avx2Run(const Avx2Matmul& call, int64_t first, int64_t last);

}  // namespace tandem::gpu_worker::ops::host
