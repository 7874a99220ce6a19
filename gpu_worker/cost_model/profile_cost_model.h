#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/model_shape/model_shape.h"
#include "gpu_worker/cost_model/cost_model.h"
#include "gpu_worker/cost_model/device_profile.h"

namespace tandem::gpu_worker {

// What runs on a profile's hardware.
struct ProfileCostOptions {
  DType compute_dtype = DType::kFloat16;  // of weights, activations and the GPU's KV
  DType cpu_kv_dtype = DType::kBFloat16;
  int32_t tensor_parallel = 1;     // GPUs that share each layer; the CPU tier holds all heads
  bool graphs = true;              // steps are captured; else each kernel is launched by itself
  int64_t max_sampled_rows = 256;  // of a step: only these go through the output matrix
  // KV bytes per us that CPU attention reaches; <= 0: as the profile's host.
  double cpu_attention_bytes_per_us = 0;
};

// The cost model of `shape` on a profile's hardware. InvalidArgument names the field of a
// combination that cannot run: a type the GPU lacks, heads that do not divide.
absl::StatusOr<std::unique_ptr<CostModel>> MakeProfileCostModel(const DeviceProfile& profile,
                                                                const ModelShape& shape,
                                                                const ProfileCostOptions& options);

// Bytes of all weights of `dtype`, and of the KV of one token in all layers with both heads' halves
// (int8 with its scales).
double WeightBytes(const ModelShape& shape, DType dtype);
double KvBytesPerToken(const ModelShape& shape, DType dtype);

}  // namespace tandem::gpu_worker
