#pragma once

#include <string>
#include <vector>

#include "cli/plan/sweep.h"

namespace tandem::cli {

// One simulation as a line of JSON.
std::string PlanJson(const PlanSettings& settings, const PlanOutcome& outcome);
// All of them for people, gains over the `off` of the same setting where it was simulated.
std::string PlanTable(const PlanSettings& settings, const std::vector<PlanOutcome>& outcomes);

std::string DeployJson(const PlanSettings& settings, const PlanPoint& point,
                       const DeployAnswer& answer);
// A sentence.
std::string DeployText(const PlanSettings& settings, const PlanPoint& point,
                       const DeployAnswer& answer);

// The outcome with --offload off of the same setting; null when there is none.
const PlanOutcome* BaselineOf(const std::vector<PlanOutcome>& outcomes, const PlanPoint& point);

double OutputTokensPerSecond(const SimulationResult& result);
double RequestsPerSecond(const SimulationResult& result);

}  // namespace tandem::cli
