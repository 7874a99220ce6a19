#include "router/frontend/prompts.h"

#include <algorithm>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/encode_chat.h"
#include "router/frontend/text/incremental_detokenizer.h"

namespace tandem::router {
namespace {

constexpr int64_t kDefaultCompletionTokens = 16;  // OpenAI's

ApiError NoTokenizer(std::string param) {
  return InvalidRequest("This model has no tokenizer; send token ids in `prompt`.",
                        std::move(param));
}

ApiError TooLong(const ModelInfo& model, const std::string& has, std::string param) {
  return ContextLengthExceeded(
      base::StrCat("This model's maximum context length is ", model.max_model_len,
                   " tokens, but the prompt ", has, "."),
      std::move(param));
}

// No token stands for more bytes than the longest one, so that a text far too long need not be
// tokenized to be refused.
bool IsHopeless(const ModelInfo& model, size_t bytes) {
  return bytes / model.text->longest_token_bytes > static_cast<size_t>(model.max_model_len);
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

// Cuts a rendered chat behind its last message, so that the model goes on with that.
ApiResult CutAfterFinalMessage(const Json& messages, chat_template::Rendered* rendered) {
  const Json& content = messages.back()["content"];
  std::string final_text = content.is_string() ? content.get<std::string>() : "";
  size_t at = rendered->text.rfind(final_text);
  if (at == std::string::npos) {  // many templates trim
    const size_t first = final_text.find_first_not_of(" \t\r\n");
    const size_t last = final_text.find_last_not_of(" \t\r\n");
    final_text = first == std::string::npos ? "" : final_text.substr(first, last - first + 1);
    at = rendered->text.rfind(final_text);
  }
  if (final_text.empty() || at == std::string::npos) {
    return InvalidRequest(
        "`continue_final_message` is set, but the last message has no text that the chat template "
        "keeps.",
        "continue_final_message");
  }
  const size_t end = at + final_text.size();
  rendered->text.resize(end);
  auto& spans = rendered->spans;
  while (!spans.empty() && spans.back().begin >= end) {
    spans.pop_back();
  }
  if (!spans.empty()) {
    spans.back().end = std::min(spans.back().end, end);
  }
  return std::nullopt;
}

ApiError TemplateProblem(const absl::Status& status) {
  const auto error = chat_template::TemplateErrorOf(status);
  std::string message = "The chat template refused the messages: ";
  message += error ? error->message : std::string(status.message());
  if (error && error->line > 0) {
    message += " (line " + std::to_string(error->line) + " of the template)";
  }
  return InvalidRequest(std::move(message), "messages");
}

ApiResult EncodeMessages(const GenerationRequest& request, const ModelInfo& model,
                         int64_t now_unix_s, TokenizedPrompt* out) {
  const ModelText& text = *model.text;
  if (!text.chat_template) {
    return InvalidRequest(text.chat_template_problem, "messages");
  }
  Json variables = request.template_variables;
  for (const char* name : {"tools", "documents"}) {
    if (!variables.contains(name)) {
      variables[name] = nullptr;  // templates compare them with none
    }
  }
  variables["messages"] = request.messages;
  variables["add_generation_prompt"] =
      request.add_generation_prompt.value_or(!request.continue_final_message);
  variables["bos_token"] = std::string(text.tokenizer->bos_text());
  variables["eos_token"] = std::string(text.tokenizer->eos_text());
  chat_template::RenderOptions options;
  options.now_unix_s = now_unix_s;
  auto rendered = text.chat_template->Render(variables, options);
  if (!rendered.ok()) {
    return TemplateProblem(rendered.status());
  }
  if (request.continue_final_message) {
    if (ApiResult error = CutAfterFinalMessage(request.messages, &*rendered)) {
      return error;
    }
  }
  if (request.endpoint != Endpoint::kTokenize && IsHopeless(model, rendered->text.size())) {
    return TooLong(model, "is far longer", "messages");
  }
  auto tokens = chat_template::EncodeChat(*text.tokenizer, *rendered);
  if (!tokens.ok()) {
    return InvalidRequest(
        "The messages cannot be tokenized: " + std::string(tokens.status().message()), "messages");
  }
  out->tokens = *std::move(tokens);
  out->text = std::move(rendered->text);
  return std::nullopt;
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

ApiResult TokenizeOnly(const GenerationRequest& request, const ModelInfo& model, int64_t now_unix_s,
                       TokenizedPrompt* out) {
  if (!request.messages.is_null()) {
    return model.text ? EncodeMessages(request, model, now_unix_s, out) : NoTokenizer("messages");
  }
  return EncodePrompt(request, model, request.prompts[0], out);
}

ApiResult TokenizePrompts(const GenerationRequest& request, const ModelInfo& model,
                          int64_t now_unix_s, std::vector<TokenizedPrompt>* out) {
  const bool chat = request.endpoint == Endpoint::kChat;
  const char* param = chat ? "messages" : "prompt";
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
    return InvalidRequest(base::StrCat("`max_tokens` is ", *request.max_tokens,
                                       ", but this model's maximum context length is ",
                                       model.max_model_len, " tokens."),
                          "max_tokens", "context_length_exceeded");
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
    return InvalidRequest(
        base::StrCat("`max_tokens` is ", *request.max_tokens,
                     ", but this model's maximum context length is ", model.max_model_len,
                     " tokens and the prompt has ", prompt_tokens, "."),
        "max_tokens", "context_length_exceeded");
  }
  const int64_t fallback = request.endpoint == Endpoint::kChat
                               ? room
                               : std::max(kDefaultCompletionTokens, request.min_tokens.value_or(0));
  *max_tokens = static_cast<int32_t>(request.max_tokens.value_or(std::min(room, fallback)));
  if (request.min_tokens.value_or(0) > *max_tokens) {
    return InvalidRequest("`min_tokens` is larger than what the context leaves.", "min_tokens");
  }
  return std::nullopt;
}

}  // namespace tandem::router
