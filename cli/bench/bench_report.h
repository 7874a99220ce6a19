#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench/load_generator.h"

namespace tandem::cli {

// Percentile of values in any order, by linear interpolation; `percent` in [0, 100]. 0 of none.
double Percentile(std::vector<double> values, double percent);

// The measurement as one line of JSON: requests_per_s, output_tokens_per_s, ttft_ms, itl_ms and
// e2e_ms (mean, p50, p90, p99 of the requests that succeeded; null where there is nothing to
// measure), errors and counts.
std::string ReportJson(const LoadOptions& options, const LoadOutcome& outcome);

// The same for people.
std::string ReportTable(const LoadOutcome& outcome);

}  // namespace tandem::cli
