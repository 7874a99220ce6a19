#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_files/model_files.h"
#include "gpu_worker/ops/linear.h"

namespace tandem::gpu_worker::model {

struct LayerWeights {
  std::vector<float> attention_norm;                    // [hidden_size]
  std::unique_ptr<ops::PackedLinear> qkv;               // [q_size + 2 * kv_size, hidden_size]
  std::vector<float> q_norm;                            // [head_dim] or empty
  std::vector<float> k_norm;                            // [head_dim] or empty
  std::unique_ptr<ops::PackedLinear> attention_output;  // [hidden_size, q_size]
  std::vector<float> mlp_norm;                          // [hidden_size]
  std::unique_ptr<ops::PackedLinear> gate_up;           // [2 * intermediate_size, hidden_size]
  std::unique_ptr<ops::PackedLinear> down;              // [hidden_size, intermediate_size]
};

// A decoder's weights on the device. Matrices are in the compute dtype, vectors in float32.
struct Weights {
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;             // [hidden_size]
  std::unique_ptr<ops::PackedLinear> output;  // [vocab_size, hidden_size]
  std::unique_ptr<device::Buffer> embedding;  // [vocab_size, hidden_size]; null when tied: `output`
  uint64_t matrix_bytes = 0;                  // that a step reads, the embedding apart
  double flops_per_token = 0;                 // of the matrices, multiply and add counted
};

// Returns when everything is packed and `files` is not needed any more. InvalidArgument names a
// role that is missing or has the wrong shape; ResourceExhausted when memory lacks.
absl::StatusOr<Weights> LoadWeights(ops::OpContext& context, const model_files::ModelFiles& files);

}  // namespace tandem::gpu_worker::model
