#pragma once

#include <string>

#include "absl/status/status.h"
#include "router/frontend/chat_template/chat_template.h"

namespace tandem::chat_template {

// The status that carries a template's error; TemplateErrorOf reads it back.
absl::Status ToStatus(const TemplateError& error);

inline absl::Status SyntaxError(std::string message, int line) {
  return ToStatus({ErrorKind::kSyntax, std::move(message), line});
}

}  // namespace tandem::chat_template
