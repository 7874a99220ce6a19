#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "cli/bench/load_generator.h"
#include "cli/bench/sse_parser.h"
#include "nlohmann/json_fwd.hpp"

namespace tandem::cli {

// Measures one answer of /v1/completions from its body, in pieces as they arrive. Not thread-safe.
class CompletionReader {
 public:
  CompletionReader(bool stream, int64_t due_us) : stream_(stream), due_us_(due_us) {}

  void Feed(std::string_view piece, int64_t now_us);
  // At the end of the body. total_us is left to the caller.
  RequestOutcome Finish(int64_t now_us);

 private:
  void TakeEvent(const std::string& data, int64_t now_us);
  void TakeUsage(const nlohmann::json& answer);
  void AddTokens(int64_t count, int64_t now_us);

  const bool stream_;
  const int64_t due_us_;
  SseParser sse_;
  std::string body_;  // of an answer in one piece
  RequestOutcome outcome_;
  int64_t counted_tokens_ = 0;
  int64_t last_token_us_ = 0;
  bool has_usage_ = false;
  bool done_ = false;
};

// The body of GET /v1/models.
absl::StatusOr<ServedModel> ParseServedModel(const std::string& body);

}  // namespace tandem::cli
