#include "router/frontend/prompts.h"

#include <algorithm>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_prompt.h"
#include "router/frontend/text/incremental_detokenizer.h"

namespace tandem::router {
namespace {

constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's

ApiError NoTokenizer(std::string param) {
  return InvalidRequest("This model has no tokenizer; send token ids in `prompt`.",
                        std::move(param));
}

ApiResult EncodeText(const ModelInfo& model, std::string_view text, bool add_special,
                     std::vector<int32_t>* tokens) {
  tokenizer::EncodeOptions options;
  options.parse_special = true;
  options.add_special = add_special;
  auto encoded = model.text->tokenizer->Encode(text, options);
  if (!encoded.ok()) {
    return InvalidRequest(
        "`prompt` cannot be tokenized: " + std::string(encoded.status().message()), "prompt");
  }
  *tokens = *std::move(encoded);
  return std::nullopt;
}

ApiResult CheckIds(const std::vector<int32_t>& ids, const ModelInfo& model, const char* param) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= model.vocab_size) {
      return InvalidRequest(base::StrCat("`", param, "` has token id ", id, "; the vocabulary has ",
                                         model.vocab_size, "."),
                            param);
    }
  }
  return std::nullopt;
}

std::string TextOf(const tokenizer::Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                   bool skip_special) {
  text::DetokenizerOptions options;
  options.skip_special = skip_special;
  options.continuation = false;
  text::IncrementalDetokenizer detokenizer(&tokenizer, options);
  std::string text;
  for (const int32_t id : ids) {
    text += detokenizer.Append(id);
  }
  return text + detokenizer.Flush();
}

ApiResult EncodePrompt(const GenerationRequest& request, const ModelInfo& model,
                       const Prompt& prompt, TokenizedPrompt* out) {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt)) {
    if (ApiResult error = CheckIds(*ids, model, "prompt")) {
      return error;
    }
    out->tokens = *ids;
    if (request.echo && model.text) {
      out->text = TextOf(*model.text->tokenizer, *ids, request.skip_special_tokens);
      out->skips_special = request.skip_special_tokens;
    }
    return std::nullopt;
  }
  const std::string& text = std::get<std::string>(prompt);
  if (!model.text) {
    return NoTokenizer("prompt");
  }
  if (request.endpoint != Endpoint::kTokenize && IsHopeless(model, text.size())) {
    return TooLong(model, "is far longer", "prompt");
  }
  out->text = text;
  return EncodeText(model, text, request.add_special_tokens.value_or(true), &out->tokens);
}

}  // namespace

ApiError TooLong(const ModelInfo& model, const std::string& has, std::string param) {
  return ContextLengthExceeded(
      base::StrCat("This model's maximum context length is ", model.max_model_len,
                   " tokens, but the prompt ", has, "."),
      std::move(param));
}

bool IsHopeless(const ModelInfo& model, size_t bytes) {
  return bytes / model.text->longest_token_bytes > static_cast<size_t>(model.max_model_len);
}

ApiResult TokenizeOnly(const GenerationRequest& request, const ModelInfo& model, int64_t now_unix_s,
                       TokenizedPrompt* out) {
  if (!request.messages.is_null()) {
    return model.text ? EncodeMessages(request, model, now_unix_s, out)
                      : NoTokenizer(MessagesParam(request.endpoint));
  }
  return EncodePrompt(request, model, request.prompts[0], out);
}

ApiResult TokenizePrompts(const GenerationRequest& request, const ModelInfo& model,
                          int64_t now_unix_s, std::vector<TokenizedPrompt>* out) {
  const bool chat = IsChat(request.endpoint);
  const char* param = chat ? MessagesParam(request.endpoint) : "prompt";
  out->clear();
  for (size_t i = 0; i < (chat ? 1 : request.prompts.size()); ++i) {
    TokenizedPrompt prompt;
    ApiResult error = chat ? TokenizeOnly(request, model, now_unix_s, &prompt)
                           : EncodePrompt(request, model, request.prompts[i], &prompt);
    if (error) {
      return error;
    }
    if (prompt.tokens.empty()) {
      return InvalidRequest("The prompt is empty.", param);
    }
    if (prompt.tokens.size() >= static_cast<size_t>(model.max_model_len)) {
      return TooLong(
          model, base::StrCat("has ", prompt.tokens.size(), " and one must be left for the answer"),
          param);
    }
    out->push_back(std::move(prompt));
  }
  return std::nullopt;
}

ApiResult Detokenize(const std::vector<int32_t>& tokens, const ModelInfo& model, std::string* out) {
  if (!model.text) {
    return InvalidRequest("This model has no tokenizer.", "tokens");
  }
  if (ApiResult error = CheckIds(tokens, model, "tokens")) {
    return error;
  }
  *out = TextOf(*model.text->tokenizer, tokens, /*skip_special=*/false);
  return std::nullopt;
}

ApiResult CheckAgainstModel(const GenerationRequest& request, const ModelInfo& model) {
  if (request.max_tokens && *request.max_tokens >= model.max_model_len) {
    const char* name = MaxTokensParam(request);
    return InvalidRequest(base::StrCat("`", name, "` is ", *request.max_tokens,
                                       ", but this model's maximum context length is ",
                                       model.max_model_len, " tokens."),
                          name, "context_length_exceeded");
  }
  if (ApiResult error = CheckIds(request.stop_token_ids, model, "stop_token_ids")) {
    return error;
  }
  for (const auto& [id, bias] : request.logit_bias) {
    if (ApiResult error = CheckIds({id}, model, "logit_bias")) {
      return error;
    }
  }
  if (!model.text && !request.stop.empty()) {
    return InvalidRequest("This model has no tokenizer, so that `stop` cannot be used.", "stop");
  }
  return std::nullopt;
}

ApiResult MaxTokensFor(const GenerationRequest& request, const ModelInfo& model,
                       int64_t prompt_tokens, int32_t* max_tokens) {
  const int64_t room = model.max_model_len - prompt_tokens;
  if (request.max_tokens && *request.max_tokens > room) {
    const char* name = MaxTokensParam(request);
    return InvalidRequest(
        base::StrCat("`", name, "` is ", *request.max_tokens,
                     ", but this model's maximum context length is ", model.max_model_len,
                     " tokens and the prompt has ", prompt_tokens, "."),
        name, "context_length_exceeded");
  }
  const int64_t fallback = IsChat(request.endpoint)
                               ? room
                               : std::max(kDefaultCompletionTokens, request.min_tokens.value_or(0));
  *max_tokens = static_cast<int32_t>(request.max_tokens.value_or(std::min(room, fallback)));
  if (request.min_tokens.value_or(0) > *max_tokens) {
    return InvalidRequest("`min_tokens` is larger than what the context leaves.", "min_tokens");
  }
  return std::nullopt;
}

}  // namespace tandem::router
