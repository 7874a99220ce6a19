#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "router/frontend/generation_request.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// Reads a body into `request`, whose endpoint is set. Every field that we know is in one table with
// its type and range; 400 names the first field that is wrong. A null counts as absent.
// `on_unknown` hears of fields that are not in the table; they are ignored.
ApiResult ReadRequest(const Json& body, GenerationRequest* request,
                      const std::function<void(std::string_view)>& on_unknown);

inline constexpr int64_t kMaxChoices = 1024;  // prompts times n
inline constexpr int64_t kMaxN = 128;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr int64_t kMaxTopLogprobs = 20;

}  // namespace tandem::router
