#include "router/frontend/chat_prompt.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "router/frontend/chat_template/encode_chat.h"
#include "router/frontend/tools.h"

namespace tandem::router {
namespace {

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

ApiError TemplateProblem(const absl::Status& status, const char* param) {
  const auto error = chat_template::TemplateErrorOf(status);
  std::string message = "The chat template refused the messages: ";
  message += error ? error->message : std::string(status.message());
  if (error && error->line > 0) {
    message += " (line " + std::to_string(error->line) + " of the template)";
  }
  return InvalidRequest(std::move(message), param);
}

Json TemplateVariables(const GenerationRequest& request, const ModelText& text) {
  Json variables = request.template_variables;
  for (const char* name : {"tools", "documents"}) {
    if (!variables.contains(name)) {
      variables[name] = nullptr;  // templates compare them with none
    }
  }
  variables["messages"] = request.messages;
  FitCallIds(text, &variables["messages"]);
  if (!text.traits.knows_tools) {
    WriteToolsAsText(request, text, &variables["messages"]);
  } else if (request.tools.active()) {
    variables["tools"] = request.tools.shown;
  }
  variables["add_generation_prompt"] =
      request.add_generation_prompt.value_or(!request.continue_final_message);
  variables["bos_token"] = std::string(text.tokenizer->bos_text());
  variables["eos_token"] = std::string(text.tokenizer->eos_text());
  return variables;
}

// Whether the answer begins inside <think>: what comes last, the template's own text or the message
// that is gone on with, leaves it open. Messages before it may say what they like.
bool EndsInReasoning(const chat_template::Rendered& rendered, bool continues) {
  if (rendered.spans.empty() || (!rendered.spans.back().trusted && !continues)) {
    return false;
  }
  const std::string_view last = std::string_view(rendered.text).substr(rendered.spans.back().begin);
  const size_t open = last.rfind("<think>");
  const size_t close = last.rfind("</think>");
  return open != std::string_view::npos && (close == std::string_view::npos || close < open);
}

}  // namespace

const char* MessagesParam(Endpoint endpoint) {
  return endpoint == Endpoint::kResponses ? "input" : "messages";
}

const char* MaxTokensParam(const GenerationRequest& request) {
  return request.endpoint == Endpoint::kResponses ? "max_output_tokens"
         : request.max_completion_tokens          ? "max_completion_tokens"
                                                  : "max_tokens";
}

ApiResult EncodeMessages(const GenerationRequest& request, const ModelInfo& model,
                         int64_t now_unix_s, TokenizedPrompt* out) {
  const ModelText& text = *model.text;
  const char* const param = MessagesParam(request.endpoint);
  if (!text.chat_template) {
    return InvalidRequest(text.chat_template_problem, param);
  }
  chat_template::RenderOptions options;
  options.now_unix_s = now_unix_s;
  const Json variables = TemplateVariables(request, text);
  auto rendered = text.chat_template->Render(variables, options);
  if (!rendered.ok()) {
    return TemplateProblem(rendered.status(), param);
  }
  if (request.continue_final_message) {
    if (ApiResult error = CutAfterFinalMessage(variables["messages"], &*rendered)) {
      return error;
    }
  }
  if (request.endpoint != Endpoint::kTokenize && IsHopeless(model, rendered->text.size())) {
    return TooLong(model, "is far longer", param);
  }
  auto tokens = chat_template::EncodeChat(*text.tokenizer, *rendered);
  if (!tokens.ok()) {
    return InvalidRequest(
        "The messages cannot be tokenized: " + std::string(tokens.status().message()), param);
  }
  out->tokens = *std::move(tokens);
  out->ends_in_reasoning =
      text.traits.reasoning && EndsInReasoning(*rendered, request.continue_final_message);
  out->text = std::move(rendered->text);
  return std::nullopt;
}

}  // namespace tandem::router
