#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/load_generator.h"

namespace tandem::cli {

// The flags of `tandem bench serve`.
struct ServeBenchFlags {
  std::string url = "http://127.0.0.1:8000";
  std::string trace;
  std::optional<int64_t> prompt_len;
  std::optional<int64_t> output_len;
  std::optional<int64_t> requests;
  std::optional<int64_t> concurrency;
  double rate = 0;  // requests per second; 0: not given
  std::string model;
  std::string api_key;
  bool stream = true;
  int64_t seed = 0;
  int64_t timeout_s = 3600;
  int64_t max_connections = 1024;
  bool table = false;
};

// The requests that the flags ask for, in order of arrival. InvalidArgument names the flag that is
// missing or contradicts another.
absl::StatusOr<std::vector<PlannedRequest>> PlanRequests(const ServeBenchFlags& flags);

// Shortens requests that the model's context cannot hold (its length, 0: unknown). Returns how
// many.
int64_t ClipToContext(int64_t max_model_len, std::vector<PlannedRequest>* requests);

// `tandem bench serve`: exit status 0, 1 when no request succeeded, 2 for bad flags.
int RunServeBench(const std::vector<std::string>& args);

}  // namespace tandem::cli
