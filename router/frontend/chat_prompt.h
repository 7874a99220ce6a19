#pragma once

#include <cstdint>
#include <string>

#include "router/frontend/generation_request.h"
#include "router/frontend/prompts.h"

namespace tandem::router {

// Renders the request's messages through the model's template and tokenizes the result. The model
// has a tokenizer.
ApiResult EncodeMessages(const GenerationRequest& request, const ModelInfo& model,
                         int64_t now_unix_s, TokenizedPrompt* out);

// The field that holds an endpoint's messages.
const char* MessagesParam(Endpoint endpoint);
// The field by which the client bounded the output.
const char* MaxTokensParam(const GenerationRequest& request);

// 400: the prompt `has` more than the model takes.
ApiError TooLong(const ModelInfo& model, const std::string& has, std::string param);
// No token stands for more bytes than the longest one, so that a text far too long need not be
// tokenized to be refused.
bool IsHopeless(const ModelInfo& model, size_t bytes);

}  // namespace tandem::router
