#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

// One request of a simulation.
struct PlannedArrival {
  int64_t arrival_us = 0;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
};

// Where requests come from: a trace, or lengths drawn around fixed ones.
struct WorkloadSource {
  std::string trace;          // CSV; empty: synthetic
  int64_t prompt_tokens = 0;  // synthetic, mean
  int64_t output_tokens = 0;
  double spread = 0;     // lengths are uniform in mean * [1 - spread, 1 + spread]
  int64_t requests = 0;  // of a trace its first ones; 0: all of it
  uint64_t seed = 0;
};

// How they arrive.
struct ArrivalPlan {
  double rate = 0;              // per second, at random (Poisson); 0: as below
  bool use_timestamps = false;  // of the trace; else all at once
  uint64_t seed = 0;
};

// Lengths (and the trace's times, 0 where it has none), in the order of arrival. InvalidArgument
// names flag, or line and column.
absl::StatusOr<std::vector<PlannedArrival>> MakeRequests(const WorkloadSource& source);

// The same requests with their times of arrival. The same seed gives the same times, scaled by the
// rate.
std::vector<PlannedArrival> WithArrivals(std::vector<PlannedArrival> requests,
                                         const ArrivalPlan& plan);

}  // namespace tandem::cli
