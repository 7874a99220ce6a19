#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "router/fleet/model_info.h"
#include "router/frontend/chat_template/chat_template.h"

namespace tandem::router {

// What turns a model's text into tokens and back. Immutable, shared by threads.
struct ModelText {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  // Null where the model has none, or one that cannot be used: chat_template_problem says which.
  std::unique_ptr<chat_template::ChatTemplate> chat_template;
  std::string chat_template_problem;
  size_t longest_token_bytes = 1;
};

// Null for a spec of kind kNone: the model has no tokenizer.
absl::StatusOr<std::shared_ptr<const ModelText>> BuildModelText(
    const tokenizer::TokenizerSpec& spec);

}  // namespace tandem::router
