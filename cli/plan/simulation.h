#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan/histogram.h"
#include "cli/plan/simulated_runner.h"
#include "cli/plan/workload.h"
#include "gpu_worker/engine/engine_core.h"

namespace tandem::cli {

// From `from_us` on every term takes `factors` times what the cost model says.
struct Disturbance {
  int64_t from_us = 0;
  gpu_worker::Corrections factors;
};

struct SimulationSetup {
  std::shared_ptr<const gpu_worker::CostModel> cost_model;
  gpu_worker::RunnerLimits limits;
  gpu_worker::EngineOptions engine;
  // > 0: a closed loop: so many requests are open, and the next one arrives when one ends.
  int64_t concurrency = 0;
  double step_overhead_us = 0;            // planning, launching and sampling between two steps
  std::vector<Disturbance> disturbances;  // in order of time
  int64_t timeline_us = 0;                // > 0: length of a point of the timeline
  // > 0: output tokens are counted apart from `window_from_us` on for so long.
  int64_t window_us = 0;
  int64_t window_from_us = 0;
  bool check_invariants = false;  // after each step
  // A run that takes more steps or lasts longer is an error.
  int64_t max_steps = 200'000'000;
};

// What happened between two moments.
struct TimelinePoint {
  int64_t start_us = 0;
  double mode_us[3] = {0, 0, 0};  // by StepMode
  double gpu_busy_us = 0;
  double cpu_busy_us = 0;
  int64_t output_tokens = 0;
};

struct SimulationResult {
  int64_t requests = 0;
  int64_t completed = 0;
  int64_t refused = 0;  // too long for the model or for every pool
  int64_t output_tokens = 0;
  int64_t window_tokens = 0;  // of them, in the setup's window
  int64_t window_us = 0;
  int64_t duration_us = 0;
  int64_t steps[3] = {0, 0, 0};  // by StepMode
  double mode_us[3] = {0, 0, 0};
  double gpu_busy_us = 0;
  double cpu_busy_us = 0;
  gpu_worker::EngineSnapshot counters;  // at the end
  Histogram first_token_us;
  Histogram inter_token_us;
  Histogram total_us;
  Histogram per_token_us;  // of a request: whole time by output tokens
  std::vector<TimelinePoint> timeline;

  double seconds() const { return static_cast<double>(duration_us) * 1e-6; }
};

// Drives the production engine core through the requests (in order of arrival) with a simulated
// clock. The same input gives the same result. Internal when requests are left that nothing will
// ever run, or when a sequence ended with an error or with the wrong number of tokens.
absl::StatusOr<SimulationResult> Simulate(const SimulationSetup& setup,
                                          std::span<const PlannedArrival> requests);

}  // namespace tandem::cli
