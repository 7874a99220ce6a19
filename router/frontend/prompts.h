#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "router/frontend/generation_request.h"
#include "router/frontend/model_text.h"
#include "router/router_core/api_error.h"

namespace tandem::router {

// A prompt as the worker gets it.
struct TokenizedPrompt {
  std::vector<int32_t> tokens;
  std::string
      text;  // as the client sent it; made from the tokens where it sent those and echo asks
  bool skips_special = false;      // `text` was made from the tokens without the control tokens
  bool ends_in_reasoning = false;  // a chat's answer begins inside <think>
};

// Turns the request's prompts, or its chat, into tokens: one entry per prompt, none of them empty
// or too long for the model. Takes time in proportion to the text.
ApiResult TokenizePrompts(const GenerationRequest& request, const ModelInfo& model,
                          int64_t now_unix_s, std::vector<TokenizedPrompt>* out);
// The same without the bound that the model's context sets, for /tokenize.
ApiResult TokenizeOnly(const GenerationRequest& request, const ModelInfo& model, int64_t now_unix_s,
                       TokenizedPrompt* out);
// A text from its tokens, special ones included.
ApiResult Detokenize(const std::vector<int32_t>& tokens, const ModelInfo& model, std::string* out);

// Checks what depends on the model but not on the prompt: max_tokens against the context, token ids
// against the vocabulary.
ApiResult CheckAgainstModel(const GenerationRequest& request, const ModelInfo& model);

// The output tokens that a prompt of `prompt_tokens` may have.
ApiResult MaxTokensFor(const GenerationRequest& request, const ModelInfo& model,
                       int64_t prompt_tokens, int32_t* max_tokens);

}  // namespace tandem::router
