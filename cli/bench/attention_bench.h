#pragma once

#include <string>
#include <vector>

namespace tandem::cli {

// `tandem bench attention`: decode attention of one shape by the real worker process, against the
// streaming read limit measured in the same run. Prints one JSON line, or a table with --table.
int RunBenchAttention(const std::vector<std::string>& args);

}  // namespace tandem::cli
