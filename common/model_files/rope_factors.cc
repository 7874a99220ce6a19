#include "common/model_files/rope_factors.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem::model_files {
namespace {

// Factors are stored as float32; converters compute them in float32 as well.
constexpr double kTolerance = 1e-4;

double Frequency(double theta, size_t pair, size_t num_pairs) {
  return std::pow(theta, -static_cast<double>(pair) / static_cast<double>(num_pairs));
}

bool Matches(const RopeShape& rope, const std::vector<float>& factors) {
  const std::vector<double> wanted = RopeFactors(rope, static_cast<int32_t>(factors.size() * 2));
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(std::abs(static_cast<double>(factors[i]) - wanted[i]) <= kTolerance * wanted[i])) {
      return false;
    }
  }
  return true;
}

// Between its two wavelengths llama3 sets 1 / factor_i = (1 - s) / factor + s, where
// s = (original * frequency / 2 pi - low) / (high - low) is linear in the frequency: two such pairs
// give its slope and offset. (low, high, original) have one degree of freedom too many; low = 1 is
// what every published model has.
std::optional<RopeShape> SolveLlama3(const std::vector<float>& factors, RopeShape rope) {
  std::vector<std::pair<double, double>> points;  // frequency, s
  for (size_t i = 0; i < factors.size(); ++i) {
    const double inverse = 1.0 / static_cast<double>(factors[i]);
    const double s = (inverse - 1.0 / rope.factor) / (1.0 - 1.0 / rope.factor);
    if (s > kTolerance && s < 1.0 - kTolerance) {
      points.emplace_back(Frequency(rope.theta, i, factors.size()), s);
    }
  }
  if (points.size() < 2) {
    return std::nullopt;
  }
  const auto [f0, s0] = points.front();
  const auto [f1, s1] = points.back();
  const double slope = (s0 - s1) / (f0 - f1);
  const double offset = s0 - slope * f0;  // -low / (high - low)
  if (!(slope > 0) || !(offset < 0)) {
    return std::nullopt;
  }
  const double spread = -1.0 / offset;
  const double original = slope * spread * 2.0 * std::numbers::pi;
  if (!(original >= 1.0 && original <= 1 << 27)) {
    return std::nullopt;
  }
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 1.0 + spread;
  rope.original_max_position = static_cast<int32_t>(std::lround(original));
  return Matches(rope, factors) ? std::optional<RopeShape>(rope) : std::nullopt;
}

}  // namespace

std::vector<double> RopeFactors(const RopeShape& rope, int32_t head_dim) {
  const size_t num_pairs = static_cast<size_t>(head_dim / 2);
  std::vector<double> factors(num_pairs, 1.0);
  if (rope.scaling == RopeShape::Scaling::kLinear) {
    std::fill(factors.begin(), factors.end(), rope.factor);
  }
  if (rope.scaling != RopeShape::Scaling::kLlama3) {
    return factors;
  }
  for (size_t i = 0; i < num_pairs; ++i) {
    const double wavelength = 2.0 * std::numbers::pi / Frequency(rope.theta, i, num_pairs);
    const double turns = rope.original_max_position / wavelength;
    if (turns > rope.high_freq_factor) {
      continue;
    }
    if (turns < rope.low_freq_factor) {
      factors[i] = rope.factor;
      continue;
    }
    const double s =
        (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
    factors[i] = 1.0 / ((1.0 - s) / rope.factor + s);
  }
  return factors;
}

std::optional<RopeShape> RopeFromFactors(const std::vector<float>& factors, double theta) {
  RopeShape rope;
  rope.theta = theta;
  if (Matches(rope, factors)) {
    return rope;
  }
  rope.factor = static_cast<double>(*std::max_element(factors.begin(), factors.end()));
  if (!(rope.factor > 1.0 && rope.factor < 1e6)) {
    return std::nullopt;
  }
  rope.scaling = RopeShape::Scaling::kLinear;
  if (Matches(rope, factors)) {
    return rope;
  }
  rope.scaling = RopeShape::Scaling::kLlama3;
  if (const auto solved = SolveLlama3(factors, rope)) {
    return solved;
  }
  // Too few pairs between the two wavelengths to solve for: the settings of published models.
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  for (int32_t original = 256; original <= 1 << 20; original *= 2) {
    rope.original_max_position = original;
    if (Matches(rope, factors)) {
      return rope;
    }
  }
  return std::nullopt;
}

}  // namespace tandem::model_files
