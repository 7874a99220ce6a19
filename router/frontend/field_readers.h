#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "router/frontend/generation_request.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// 400: `name` must be `expected`, and is `value`.
ApiError WrongField(std::string_view name, const std::string& expected, const Json& value);
// 5 and 5.0, but not 5.5 or what 64 bits do not hold.
std::optional<int64_t> AsInteger(const Json& value);

// Readers of the fields that are more than a number or a flag. Each checks `value` and puts it into
// `request`, or says what is wrong.
ApiResult ReadModel(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadPrompt(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadContent(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadTokens(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadMessages(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadTemplateVariables(std::string_view name, const Json& value,
                                GenerationRequest* request);
ApiResult ReadEnableThinking(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadStop(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadStopTokens(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadLogitBias(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadStreamOptions(std::string_view name, const Json& value, GenerationRequest* request);

}  // namespace tandem::router
