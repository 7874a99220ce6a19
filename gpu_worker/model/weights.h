#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_files/model_files.h"
#include "gpu_worker/model/tensor_parallel.h"
#include "gpu_worker/ops/linear.h"

namespace tandem::gpu_worker::model {

// Float32 values on the device.
class DeviceVector {
 public:
  // ResourceExhausted when memory lacks.
  static absl::StatusOr<DeviceVector> Create(device::Device& device, std::span<const float> values);
  const float* data() const { return buffer_ == nullptr ? nullptr : buffer_->as<float>(); }
  bool empty() const { return buffer_ == nullptr; }

 private:
  std::unique_ptr<device::Buffer> buffer_;
};

struct LayerWeights {
  DeviceVector attention_norm;                          // [hidden_size]
  std::unique_ptr<ops::PackedLinear> qkv;               // [q_size + 2 * kv_size, hidden_size]
  DeviceVector q_norm;                                  // [head_dim] or empty
  DeviceVector k_norm;                                  // [head_dim] or empty
  std::unique_ptr<ops::PackedLinear> attention_output;  // [hidden_size, q_size]
  DeviceVector mlp_norm;                                // [hidden_size]
  std::unique_ptr<ops::PackedLinear> gate_up;           // [2 * intermediate_size, hidden_size]
  std::unique_ptr<ops::PackedLinear> down;              // [hidden_size, intermediate_size]
};

// A decoder's weights on the device. Matrices are in the compute dtype, vectors in float32. Of
// several devices each has the sizes of model::RankShape: its heads of qkv and of
// attention_output's columns, its columns of the MLP.
struct Weights {
  std::vector<LayerWeights> layers;
  DeviceVector output_norm;                   // [hidden_size]
  std::unique_ptr<ops::PackedLinear> output;  // [vocab_size / devices, hidden_size]
  std::unique_ptr<device::Buffer> embedding;  // [vocab_size, hidden_size]; null: `output`
  uint64_t matrix_bytes = 0;                  // that a step reads, the embedding apart
  double flops_per_token = 0;                 // of the matrices, multiply and add counted
};

// Called with the share of the layers whose weights were read so far, 0 to 1; by the caller's
// thread.
using LoadProgress = std::function<void(double)>;

// Returns when everything is packed and `files` is not needed any more. InvalidArgument names a
// role that is missing or has the wrong shape; ResourceExhausted when memory lacks. One of several
// devices loads its part of each matrix; the embedding it has whole (and apart from `output`, also
// where they are tied).
absl::StatusOr<Weights> LoadWeights(ops::OpContext& context, const model_files::ModelFiles& files,
                                    const TensorParallel& parallel = {},
                                    const LoadProgress& progress = {});

}  // namespace tandem::gpu_worker::model
