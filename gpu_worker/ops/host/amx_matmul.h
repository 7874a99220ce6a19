#pragma once

#include <cstddef>
#include <cstdint>

// Matrix products in bfloat16 by the AMX unit, over weights in an order of our own. Plain values
// only: the code is compiled for that unit and shares nothing with other files.
namespace tandem::gpu_worker::ops::host {

// Weights [n, k] lie in panels of 32 columns n, padded with zeros, and those in steps of 32 of k:
// two tiles of 16 columns, each [16 pairs of k, 16 columns, 2]. So a product reads its weights in
// the order of memory, 2 KiB a step.
inline constexpr int64_t kAmxPanelColumns = 32;
inline constexpr int64_t kAmxStep = 32;

struct AmxMatmul {
  const uint16_t* weights = nullptr;
  const float* bias = nullptr;   // [n] or null
  const uint16_t* in = nullptr;  // [rows, k]
  void* out = nullptr;           // [rows, n] float32, or bfloat16
  int64_t rows = 0;
  int64_t n = 0;
  int64_t k = 0;  // a multiple of kAmxStep
  bool out_bf16 = false;
  bool accumulate = false;  // out += instead of out =; float32 only
};

// The product falls into so many parts of about equal work; threads share them out in runs.
int64_t AmxParts(const AmxMatmul& call);
// Computes parts [first, last). This CPU has AMX, and the process its permission.
void AmxRun(const AmxMatmul& call, int64_t first, int64_t last);

}  // namespace tandem::gpu_worker::ops::host
