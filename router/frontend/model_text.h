#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "router/fleet/model_info.h"
#include "router/frontend/chat_template/chat_template.h"
#include "router/frontend/template_traits.h"

namespace tandem::router {

// What turns a model's text into tokens and back. Immutable, shared by threads.
struct ModelText {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  // Null where the model has none, or one that cannot be used: chat_template_problem says which.
  std::unique_ptr<chat_template::ChatTemplate> chat_template;
  std::string chat_template_problem;
  TemplateTraits traits;
  size_t longest_token_bytes = 1;
};

struct ModelTextOptions {
  std::string chat_template;                      // instead of the model's; empty: the model's
  std::optional<tool_calls::Format> tool_format;  // nothing: found from the template
  std::optional<bool> reasoning;
  int64_t now_unix_s = 0;
};

// Null for a spec of kind kNone: the model has no tokenizer.
absl::StatusOr<std::shared_ptr<const ModelText>> BuildModelText(
    const tokenizer::TokenizerSpec& spec, const ModelTextOptions& options = {});

// OK when a plain chat can be rendered by it; else InvalidArgument with line and cause.
absl::Status CheckChatTemplate(const std::string& source, int64_t now_unix_s);

}  // namespace tandem::router
