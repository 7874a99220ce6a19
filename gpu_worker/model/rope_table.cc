#include "gpu_worker/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::gpu_worker::model {
namespace {

constexpr int32_t kLinesAtATime = 256;

// Llama 3's: long wavelengths are stretched by `factor`, short ones kept, those between blended.
double Llama3Frequency(const RopeShape& rope, double frequency) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const double low_wavelength = rope.original_max_position / rope.low_freq_factor;
  const double high_wavelength = rope.original_max_position / rope.high_freq_factor;
  if (wavelength < high_wavelength) {
    return frequency;
  }
  if (wavelength > low_wavelength) {
    return frequency / rope.factor;
  }
  const double smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - smooth) * frequency / rope.factor + smooth * frequency;
}

}  // namespace

std::vector<float> InverseFrequencies(const RopeShape& rope, int32_t head_dim) {
  std::vector<float> frequencies(static_cast<size_t>(head_dim / 2));
  for (int32_t i = 0; i < head_dim / 2; ++i) {
    double frequency = 1.0 / std::pow(rope.theta, 2.0 * i / head_dim);
    switch (rope.scaling) {
      case RopeShape::Scaling::kNone:
        break;
      case RopeShape::Scaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeShape::Scaling::kLlama3:
        frequency = Llama3Frequency(rope, frequency);
        break;
    }
    frequencies[static_cast<size_t>(i)] = static_cast<float>(frequency);
  }
  return frequencies;
}

absl::StatusOr<RopeTable> RopeTable::Create(device::Device& device, const RopeShape& rope,
                                            int32_t head_dim, int32_t max_positions) {
  RopeTable table;
  table.device_ = &device;
  table.inverse_frequencies_ = InverseFrequencies(rope, head_dim);
  table.max_positions_ = max_positions;
  const size_t bytes =
      static_cast<size_t>(max_positions) * table.inverse_frequencies_.size() * sizeof(float);
  TANDEM_ASSIGN_OR_RETURN(table.cos_, device.Allocate(bytes, "the rotary table"));
  TANDEM_ASSIGN_OR_RETURN(table.sin_, device.Allocate(bytes, "the rotary table"));
  return table;
}

absl::Status RopeTable::Prepare(int32_t count) {
  if (count <= ready_) {
    return absl::OkStatus();
  }
  // More than asked for: a sequence grows by a position with each step.
  count = std::min((count + kLinesAtATime - 1) / kLinesAtATime * kLinesAtATime, max_positions_);
  if (count <= ready_) {
    return absl::OkStatus();
  }
  const size_t half = inverse_frequencies_.size();
  const size_t lines = static_cast<size_t>(count - ready_);
  std::vector<float> cos(lines * half);
  std::vector<float> sin(lines * half);
  for (size_t line = 0; line < lines; ++line) {
    const auto position = static_cast<float>(static_cast<size_t>(ready_) + line);
    for (size_t i = 0; i < half; ++i) {
      // Checkpoints are trained with the angle rounded to float32, so it is rounded here too.
      const float angle = position * inverse_frequencies_[i];
      cos[line * half + i] = static_cast<float>(std::cos(double{angle}));
      sin[line * half + i] = static_cast<float>(std::sin(double{angle}));
    }
  }
  const size_t offset = static_cast<size_t>(ready_) * half * sizeof(float);
  const size_t bytes = cos.size() * sizeof(float);
  TANDEM_RETURN_IF_ERROR(device_->Upload(cos_->data() + offset, cos.data(), bytes));
  TANDEM_RETURN_IF_ERROR(device_->Upload(sin_->data() + offset, sin.data(), bytes));
  ready_ = count;
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker::model
