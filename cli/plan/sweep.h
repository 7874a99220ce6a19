#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan/plan_flags.h"
#include "cli/plan/simulation.h"

namespace tandem::cli {

// One simulation of a sweep over the lists of PlanSettings.
struct PlanPoint {
  std::string offload;
  double cpu_gb_per_s = 0;  // 0: as the profile's host
  int64_t prompt_len = 0;   // 0: the trace's
  int64_t output_len = 0;
  double rate = 0;  // 0: by the trace or all at once
};

struct PlanOutcome {
  PlanPoint point;
  SimulationResult result;
};

// Every combination; the offload modes of one setting stand together.
std::vector<PlanPoint> PointsOf(const PlanSettings& settings);

// What a point is simulated with. InvalidArgument names what cannot be.
absl::StatusOr<SimulationSetup> SetupFor(const PlanSettings& settings, const PlanPoint& point);

// InvalidArgument when not a single request of the point fits.
absl::StatusOr<PlanOutcome> RunPoint(const PlanSettings& settings, const PlanPoint& point);

// All points, `jobs` at a time, in order.
absl::StatusOr<std::vector<PlanOutcome>> RunPoints(const PlanSettings& settings,
                                                   const std::vector<PlanPoint>& points);

// The run of `point` at the highest rate at which a request's time by its output tokens stays at
// most max_per_token_latency_s on average. The rate is in the outcome's point; 0 when none does.
absl::StatusOr<PlanOutcome> FindRate(const PlanSettings& settings, PlanPoint point);

// What to deploy so that `point.rate` is met with --offload auto.
struct DeployAnswer {
  bool is_met = false;              // by any CPU tier
  bool is_met_without_cpu = false;  // by the GPU alone
  double cpu_gb_per_s = 0;          // smallest, with room for every sequence
  int64_t cpu_kv_tokens = 0;        // smallest, at that bandwidth
  double cpu_kv_bytes = 0;
};
absl::StatusOr<DeployAnswer> FindDeployment(const PlanSettings& settings, PlanPoint point);

}  // namespace tandem::cli
