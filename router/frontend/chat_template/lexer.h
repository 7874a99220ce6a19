#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::chat_template {

enum class TokenKind {
  kText,            // literal text of the template, white space control applied
  kPrintBegin,      // {{
  kPrintEnd,        // }}
  kStatementBegin,  // {%
  kStatementEnd,    // %}
  kName,
  kString,   // value: without quotes, escapes resolved
  kInteger,  // value: digits, underscores removed
  kFloat,
  kOperator,  // value: the characters
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string value;
  int line = 1;
};

// Cuts a template into tokens as Jinja does with trim_blocks and lstrip_blocks on and without the
// last newline. Errors are of kind kSyntax.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace tandem::chat_template
