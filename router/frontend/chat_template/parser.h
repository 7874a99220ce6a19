#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "router/frontend/chat_template/ast.h"

namespace tandem::chat_template {

// The statements of a template; errors are of kind kSyntax and name the line. Nesting is bounded.
absl::StatusOr<Body> ParseTemplate(std::string_view source);

}  // namespace tandem::chat_template
