#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/ops/cuda/kernel_params.h"
#include "gpu_worker/pipeline/step_io.h"

// Requests as the sampling kernel takes them.
namespace tandem::gpu_worker::ops::cuda {

struct SampleBatch {
  std::vector<SampleRowParams> rows;
  std::vector<TokenEdit> edits;
  // Words of all rows' masks. `allowed` of a row with a mask is still null: its words begin at
  // mask_begins[row] of what the caller copies to the device (-1: no mask).
  std::vector<uint32_t> masks;
  std::vector<int64_t> mask_begins;
};

// Tokens outside of the vocabulary are passed over. As on the host, forbidden tokens count as
// allowed where a mask leaves no others.
SampleBatch MakeSampleBatch(std::span<const SampleRequest> requests, int32_t vocab);

}  // namespace tandem::gpu_worker::ops::cuda
