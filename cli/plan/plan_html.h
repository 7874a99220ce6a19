#pragma once

#include <string>
#include <vector>

#include "cli/plan/sweep.h"

namespace tandem::cli {

// A page of its own, without anything from outside: latency against rate and throughput against
// output length where the sweep has several, and for each simulation of the last setting the share
// of modes and the busy fractions over time.
std::string PlanHtml(const PlanSettings& settings, const std::vector<PlanOutcome>& outcomes);

}  // namespace tandem::cli
