#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "router/fleet/model_info.h"
#include "router/frontend/generation_request.h"
#include "router/frontend/tool_calls/output_delta.h"
#include "tandem/v1/inference.pb.h"

namespace tandem::router {

// What all chunks of a response share.
struct ResponseHead {
  Endpoint endpoint = Endpoint::kCompletions;
  bool stream = false;
  std::string id;
  int64_t created_unix_s = 0;
  std::string model;
  std::string system_fingerprint;
};

struct UsageCounts {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t reasoning_tokens = 0;  // of completion_tokens
};

// One choice of a whole answer, or what a chunk of a stream adds to it. Members named _json hold
// finished JSON; empty means null, or no such member where that is the custom.
struct ChoicePart {
  int index = 0;
  std::string_view text;
  std::string_view reasoning;
  std::span<const tool_calls::CallDelta> calls;
  std::string logprobs_json;
  std::string_view finish_reason;  // empty: null
  std::string_view stop_reason_json;
  // A completion has these in its choice, a chat beside them.
  std::string prompt_logprobs_json;
  std::optional<std::span<const int32_t>> token_ids;         // with return_token_ids
  std::optional<std::span<const int32_t>> prompt_token_ids;  // with the first part
  // For gRPC.
  std::span<const v1::TokenOutput> tokens;
  std::span<const v1::PromptTokenLogprobs> prompt_logprobs;
  std::optional<int32_t> stop_token_id;
};

// `{"id":...,"choices":[`: how every body or chunk begins.
std::string ResponsePrefix(const ResponseHead& head);
void AppendChoice(const ResponseHead& head, const ChoicePart& part, std::string* out);
// The first chunk of a chat stream: role and empty content.
void AppendRoleChoice(int index, std::string* out);
void AppendUsage(const UsageCounts& usage, std::string* out);
// `,"name":[ids]`, or nothing.
void AppendIdsMember(std::string_view name, const std::optional<std::span<const int32_t>>& ids,
                     std::string* out);
void AppendIds(std::span<const int32_t> ids, std::string* out);

// The body of an error, as the endpoint's clients know it: OpenAI's form, with Anthropic's mark
// where that is theirs.
std::string ErrorBodyFor(Endpoint endpoint, const ApiError& error);

// One entry of /v1/models.
void AppendModel(const ModelInfo& model, std::string_view name, std::string* out);

}  // namespace tandem::router
