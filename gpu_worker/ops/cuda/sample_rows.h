#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/ops/cuda/kernel_params.h"
#include "gpu_worker/ops/token_choice.h"

// Requests as the sampling kernels take them.
namespace tandem::gpu_worker::ops::cuda {

struct SampleBatch {
  std::vector<SampleRowParams> rows;
  std::vector<TokenEdit> edits;
  // Words of all rows' masks. `allowed` of a row with a mask is still null: its words begin at
  // mask_begins[row] of what the caller copies to the device (-1: no mask).
  std::vector<uint32_t> masks;
  std::vector<int64_t> mask_begins;
  int32_t max_logprobs = -1;  // the largest num_logprobs

  // `device_masks`: where the caller copied `masks` to.
  void PointToMasks(const uint32_t* device_masks);
};

// Tokens outside of the vocabulary are passed over. As on the host, forbidden tokens count as
// allowed where a mask leaves no others.
SampleBatch MakeSampleBatch(std::span<const TokenChoice> choices, int32_t vocab);

// A row's entries as the logprobs kernel wrote them.
TokenLogprobs LogprobsFrom(const LogprobEntry* entries, int32_t num_top);

}  // namespace tandem::gpu_worker::ops::cuda
