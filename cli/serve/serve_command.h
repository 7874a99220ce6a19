#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// `tandem serve MODEL`: `args` follow the sub-command's name. Returns the exit status.
int RunServe(const std::vector<std::string>& args);

}  // namespace tandem::cli
