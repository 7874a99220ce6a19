#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/model_shape/model_shape.h"

// How the devices of one host share out a model: each holds some of the heads, some of the MLP's
// columns and some of the vocabulary's logits; norms and the embedding are on all of them.
namespace tandem::gpu_worker::model {

inline constexpr int32_t kMaxTensorParallel = 16;

struct TensorParallel {
  int32_t rank = 0;
  int32_t size = 1;
};

// InvalidArgument names the model's field that the devices cannot share out evenly. Pure.
absl::Status CheckTensorParallel(const ModelShape& shape, int32_t size);

// What one of `size` devices computes: heads and intermediate_size are its own, everything else is
// the model's. Pure.
ModelShape RankShape(const ModelShape& shape, int32_t size);

}  // namespace tandem::gpu_worker::model
