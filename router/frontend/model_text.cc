#include "router/frontend/model_text.h"

#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::router {

absl::StatusOr<std::shared_ptr<const ModelText>> BuildModelText(
    const tokenizer::TokenizerSpec& spec) {
  if (spec.kind == tokenizer::TokenizerSpec::Kind::kNone) {
    return nullptr;
  }
  auto text = std::make_shared<ModelText>();
  TANDEM_ASSIGN_OR_RETURN(text->tokenizer, tokenizer::Tokenizer::Create(spec));
  for (int32_t id = 0; id < text->tokenizer->vocab_size(); ++id) {
    text->longest_token_bytes =
        std::max(text->longest_token_bytes, text->tokenizer->TokenBytes(id).size());
  }
  if (spec.chat_template.empty()) {
    text->chat_template_problem = "This model has no chat template; use /v1/completions.";
    return text;
  }
  auto parsed = chat_template::ChatTemplate::Parse(spec.chat_template);
  if (parsed.ok()) {
    text->chat_template = *std::move(parsed);
  } else {
    text->chat_template_problem =
        "This model's chat template cannot be used: " + std::string(parsed.status().message());
    base::LogWarning("chat template cannot be used",
                     {{"error", std::string(parsed.status().message())}});
  }
  return text;
}

}  // namespace tandem::router
