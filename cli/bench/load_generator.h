#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

// "http://host:port" of a server.
struct ServerUrl {
  std::string host;
  std::string port;
};
// InvalidArgument for anything but http with an optional port.
absl::StatusOr<ServerUrl> ParseServerUrl(const std::string& url);

struct PlannedRequest {
  int64_t arrival_us = 0;  // after the start; used without `concurrency`
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
};

struct LoadOptions {
  ServerUrl url;
  std::string model;
  std::string api_key;      // empty: none
  int64_t concurrency = 0;  // > 0: so many at a time, as fast as they are answered
  bool stream = true;
  uint64_t seed = 0;            // of the prompts' token ids
  int64_t timeout_us = 0;       // of one request
  int64_t max_connections = 0;  // requests that arrive above it wait
};

struct RequestOutcome {
  bool ok = false;
  std::string error;
  std::optional<int64_t> first_token_us;  // after it was due (streams)
  std::vector<int64_t> inter_token_us;    // one per token after the first (streams)
  int64_t total_us = 0;                   // from when it was due to the end of the answer
  int64_t prompt_tokens = 0;              // as the server counted them
  int64_t output_tokens = 0;
};

struct LoadOutcome {
  std::vector<RequestOutcome> requests;
  int64_t duration_us = 0;
};

// What GET /v1/models says about the served model.
struct ServedModel {
  std::string id;
  int64_t max_model_len = 0;  // 0: not said
};
absl::StatusOr<ServedModel> FetchServedModel(const LoadOptions& options);

// Sends the requests to /v1/completions (greedy, end tokens ignored, prompts of token ids) and
// measures. Runs on the calling thread. Failed requests are outcomes; the call fails only when the
// host does not resolve.
absl::StatusOr<LoadOutcome> RunLoad(const LoadOptions& options,
                                    const std::vector<PlannedRequest>& requests);

// The body of a completion request with a prompt of `planned` size; `index` makes it differ from
// the others.
std::string CompletionBody(const LoadOptions& options, const PlannedRequest& planned,
                           uint64_t index);

}  // namespace tandem::cli
