#pragma once

#include <cstdint>

#include "gpu_worker/cost_model/predictor.h"
#include "gpu_worker/scheduler/scheduler_state.h"

// What work is worth, so that steps of different content can be compared. Pure.
namespace tandem::gpu_worker {

// What bounds a step in the steady state.
struct StepBounds {
  int32_t max_sequences = 1;
  int32_t max_rows = 1;
};

// Tokens of a sequence half-way through its output: the average.
double MeanContext(const WorkloadMix& mix);
// Sequences that the device's pool holds at once, on average.
double DeviceConcurrency(const SchedulerState& state, const StepBounds& bounds);
// Of `sequences` that run at once, those that decode in a step: where prompts fill the steps, the
// others are still in them.
double DecodesPerStep(const WorkloadMix& mix, double sequences, const StepBounds& bounds);
// One prefill row in a full step, all layers.
double PrefillRowUs(const Predictor& predictor, const SchedulerState& state);

}  // namespace tandem::gpu_worker
