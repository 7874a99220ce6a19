#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

// One request of a trace.
struct TraceRequest {
  std::optional<int64_t> arrival_us;  // after the first request's
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

// Parses the text of a CSV trace with a header: `TIMESTAMP` (optional; "YYYY-MM-DD HH:MM:SS.frac"
// or seconds), `ContextTokens` or `prompt_tokens`, `GeneratedTokens` or `output_tokens`. Stops
// after `max_requests` when that is > 0. InvalidArgument names the line and column.
absl::StatusOr<std::vector<TraceRequest>> ParseTrace(const std::string& text, int64_t max_requests);

// Reads a file; errors name it.
absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path, int64_t max_requests);

}  // namespace tandem::cli
