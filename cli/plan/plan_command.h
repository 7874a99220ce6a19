#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// `tandem plan`: simulates the production scheduler on a GPU's profile. Exit status 0; 1 when a
// simulation failed; 2 for bad flags, models, profiles and traces.
int RunPlan(const std::vector<std::string>& args);

}  // namespace tandem::cli
