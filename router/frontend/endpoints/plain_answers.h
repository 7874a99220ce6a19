#pragma once

#include <string>
#include <string_view>

#include "router/fleet/fleet.h"
#include "router/frontend/generation_request.h"
#include "router/frontend/prompts.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// Bodies of the answers that need no worker.

// /v1/models and /v1/models/{model}; 404 for a model that is not there.
ApiResult ModelsBody(const Fleet& fleet, std::string_view path, std::string* body);
std::string TokenizeBody(const GenerationRequest& request, const ModelInfo& model,
                         const TokenizedPrompt& prompt);
std::string DetokenizeBody(std::string_view text);

}  // namespace tandem::router
