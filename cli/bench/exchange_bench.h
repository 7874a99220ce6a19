#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// `tandem bench exchange`: round trip of one layer's post and done between two processes, with next
// to no attention in between. Prints one JSON line, or a table with --table.
int RunBenchExchange(const std::vector<std::string>& args);

}  // namespace tandem::cli
