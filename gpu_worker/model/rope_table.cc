#include "gpu_worker/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::gpu_worker::model {
namespace {

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
  table.inverse_frequencies_ = InverseFrequencies(rope, head_dim);
  table.max_positions_ = max_positions;
  const size_t bytes =
      static_cast<size_t>(max_positions) * table.inverse_frequencies_.size() * sizeof(float);
  TANDEM_ASSIGN_OR_RETURN(table.cos_, device.Allocate(bytes, "the rotary table"));
  TANDEM_ASSIGN_OR_RETURN(table.sin_, device.Allocate(bytes, "the rotary table"));
  return table;
}

void RopeTable::Prepare(int32_t count) {
  count = std::min(count, max_positions_);
  const size_t half = inverse_frequencies_.size();
  for (; ready_ < count; ++ready_) {
    const size_t line = static_cast<size_t>(ready_) * half;
    for (size_t i = 0; i < half; ++i) {
      // Checkpoints are trained with the angle rounded to float32, so it is rounded here too.
      const float angle = static_cast<float>(ready_) * inverse_frequencies_[i];
      cos_->as<float>()[line + i] = static_cast<float>(std::cos(double{angle}));
      sin_->as<float>()[line + i] = static_cast<float>(std::sin(double{angle}));
    }
  }
}

}  // namespace tandem::gpu_worker::model
