#pragma once

#include <string_view>

#include "router/frontend/generation_request.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// Readers of the fields of /v1/messages, which brings them into the form of OpenAI's chats.
ApiResult ReadTurns(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadSystem(std::string_view name, const Json& value, GenerationRequest* request);
// The newer place of output_format.
ApiResult ReadOutputConfig(std::string_view name, const Json& value, GenerationRequest* request);
ApiResult ReadThinking(std::string_view name, const Json& value, GenerationRequest* request);

}  // namespace tandem::router
