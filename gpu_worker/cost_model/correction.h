#pragma once

#include <utility>
#include <vector>

#include "gpu_worker/cost_model/step_load.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

// Running factors, measured over predicted, by term. Plain value.
struct Corrections {
  double linear = 1;
  double prefill = 1;
  double gpu_decode = 1;
  double cpu_decode = 1;
  double copies = 1;
};

// No factor leaves [1 / kMaxCorrection, kMaxCorrection], however odd a measurement is.
inline constexpr double kMaxCorrection = 8.0;
// Weight of the newest step; about 20 steps forget a disturbance.
inline constexpr double kCorrectionWeight = 0.1;

// Moves each factor towards what a step showed; `predicted` was made with `corrections`. Terms that
// the step did not measure stay. Returns measured / predicted of each measured term, for the
// metric.
std::vector<std::pair<const char*, double>> UpdateCorrections(const StepPrediction& predicted,
                                                              const StepTimings& measured,
                                                              Corrections* corrections);

}  // namespace tandem::gpu_worker
