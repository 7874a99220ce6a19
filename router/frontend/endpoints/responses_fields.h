#pragma once

#include <string_view>

#include "router/frontend/generation_request.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// Readers of the fields of /v1/responses.
ApiResult ReadInput(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadInstructions(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadReasoning(std::string_view name, const Json& value, GenerationRequest* request);
// `text`: the format of the output.
ApiResult ReadTextFormat(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadInclude(std::string_view name, const Json& value, GenerationRequest* request);
// Of chats too.
ApiResult ReadReasoningEffort(std::string_view name, const Json& value, GenerationRequest* request);

}  // namespace tandem::router
