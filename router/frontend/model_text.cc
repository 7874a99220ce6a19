#include "router/frontend/model_text.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::router {
namespace {

void SetTemplate(const std::string& source, const ModelTextOptions& options, ModelText* text) {
  if (source.empty()) {
    text->chat_template_problem = "This model has no chat template; use /v1/completions.";
    return;
  }
  auto parsed = chat_template::ChatTemplate::Parse(source);
  std::string problem;
  if (parsed.ok()) {
    text->traits = FindTraits(**parsed, source, options.now_unix_s);
    problem = text->traits.problem;
    text->chat_template = *std::move(parsed);
  } else {
    problem = DescribeTemplateError(parsed.status());
    text->chat_template_problem = "This model's chat template cannot be used: " + problem;
  }
  if (!problem.empty()) {
    base::LogError(
        "the chat template cannot be used: chats will be refused; --chat-template gives another",
        {{"error", problem}});
  }
  if (options.tool_format) {
    text->traits.tool_format = *options.tool_format;
  }
  text->traits.reasoning = options.reasoning.value_or(text->traits.reasoning);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ModelText>> BuildModelText(
    const tokenizer::TokenizerSpec& spec, const ModelTextOptions& options) {
  if (spec.kind == tokenizer::TokenizerSpec::Kind::kNone) {
    return nullptr;
  }
  auto text = std::make_shared<ModelText>();
  TANDEM_ASSIGN_OR_RETURN(text->tokenizer, tokenizer::Tokenizer::Create(spec));
  for (int32_t id = 0; id < text->tokenizer->vocab_size(); ++id) {
    text->longest_token_bytes =
        std::max(text->longest_token_bytes, text->tokenizer->TokenBytes(id).size());
  }
  SetTemplate(options.chat_template.empty() ? spec.chat_template : options.chat_template, options,
              text.get());
  return text;
}

absl::Status CheckChatTemplate(const std::string& source, int64_t now_unix_s) {
  const auto parsed = chat_template::ChatTemplate::Parse(source);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(DescribeTemplateError(parsed.status()));
  }
  const std::string problem = FindTraits(**parsed, source, now_unix_s).problem;
  return problem.empty() ? absl::OkStatus() : absl::InvalidArgumentError(problem);
}

}  // namespace tandem::router
