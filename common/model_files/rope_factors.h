#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "common/model_shape/model_shape.h"

namespace tandem::model_files {

// What the rotary frequency of each pair of dimensions is divided by under `rope` (1 without
// scaling), head_dim / 2 of them.
std::vector<double> RopeFactors(const RopeShape& rope, int32_t head_dim);

// GGUF files store llama3's rope scaling as these factors alone (rope_freqs.weight). Finds the
// scaling (none, linear or llama3) whose factors they are, with `theta`; nullopt when there is
// none.
std::optional<RopeShape> RopeFromFactors(const std::vector<float>& factors, double theta);

}  // namespace tandem::model_files
