#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model_shape/model_shape.h"
#include "gpu_worker/device/device.h"

namespace tandem::gpu_worker::model {

// Angle per position of each pair of dimensions, scaling applied: [head_dim / 2].
std::vector<float> InverseFrequencies(const RopeShape& rope, int32_t head_dim);

// Cosines and sines [max_positions, head_dim / 2] float32, computed in double, as far as positions
// were asked for: a model may allow 128k positions and see few of them.
class RopeTable {
 public:
  RopeTable() = default;
  static absl::StatusOr<RopeTable> Create(device::Device& device, const RopeShape& rope,
                                          int32_t head_dim, int32_t max_positions);
  // Fills at least positions [0, count). No queued work may be reading the table.
  absl::Status Prepare(int32_t count);
  const float* cos() const { return cos_->as<float>(); }
  const float* sin() const { return sin_->as<float>(); }
  int32_t max_positions() const { return max_positions_; }

 private:
  device::Device* device_ = nullptr;
  std::vector<float> inverse_frequencies_;
  std::unique_ptr<device::Buffer> cos_;
  std::unique_ptr<device::Buffer> sin_;
  int32_t max_positions_ = 0;
  int32_t ready_ = 0;
};

}  // namespace tandem::gpu_worker::model
