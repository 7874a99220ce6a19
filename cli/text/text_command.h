#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// `tandem text VERB ...`: the router's text code for scripts and checks. Reads one JSON value per
// line from stdin and prints one answer per line. Returns the exit status: 2 for a bad command
// line. A request that cannot be answered gives {"error": ..., "message": ...} and goes on.
int RunText(const std::vector<std::string>& args);

}  // namespace tandem::cli
