#pragma once

#include <utility>
#include <vector>

#include "gpu_worker/cost_model/step_load.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

// A term that no step shows any more drifts back to its table in this time, so that what was too
// slow to be used is tried again; three times as long each time that it was too slow again.
inline constexpr double kForgetTimeUs = 3e6;
inline constexpr double kLongestForgetTimeUs = 120e6;

// Running factors, measured over predicted, by term. Plain value.
struct Corrections {
  double linear = 1;
  double prefill = 1;
  double gpu_decode = 1;
  double cpu_decode = 1;
  double cpu_fixed_us = 0;  // more of CPU decode per layer, however much there is to read
  double copies = 1;
  double launch_us = 0;  // more per stage than the tables say
  double overlap = 0;    // more of it
  double cpu_forget_us = kForgetTimeUs;
  double cpu_tried_at = 0;  // cpu_decode when the CPU was tried again after a while; 0: it was not,
                            // or is known to be as slow as before
};

// No factor leaves [1 / kMaxCorrection, kMaxCorrection], however odd a measurement is.
inline constexpr double kMaxCorrection = 8.0;
// A change is followed within about this time, whether steps are short or long: what takes half of
// the cores is noticed and forgotten within a second or two.
inline constexpr double kCorrectionTimeUs = 5e5;
// Weight of one step, however short or long.
inline constexpr double kSmallestWeight = 0.01;
inline constexpr double kLargestWeight = 0.5;
// Most that CPU decode of a layer is taken to be longer by, however small it is.
inline constexpr double kMaxCpuFixedUs = 2000.0;
// Most that a stage's launch is taken to be longer.
inline constexpr double kMaxLaunchUs = 500.0;

// Moves each factor towards what a step of `step_us` showed; `predicted` was made with
// `corrections`. Of the terms that the step did not measure, the CPU's drifts back to 1; the others
// stay. Returns measured / predicted of each measured term, for the metric.
std::vector<std::pair<const char*, double>> UpdateCorrections(const StepPrediction& predicted,
                                                              const StepTimings& measured,
                                                              Corrections* corrections);

}  // namespace tandem::gpu_worker
