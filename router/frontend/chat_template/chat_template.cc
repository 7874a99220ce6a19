#include "router/frontend/chat_template/chat_template.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "router/frontend/chat_template/errors.h"
#include "router/frontend/chat_template/interpreter.h"
#include "router/frontend/chat_template/parser.h"

namespace tandem::chat_template {
namespace {

constexpr char kPayload[] = "tandem/chat_template_error";
constexpr size_t kMaxTemplateBytes = 1u << 20;
constexpr ErrorKind kKinds[] = {ErrorKind::kRaised,   ErrorKind::kUndefined, ErrorKind::kType,
                                ErrorKind::kSecurity, ErrorKind::kSyntax,    ErrorKind::kOther};

}  // namespace

std::string_view ErrorKindName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kRaised:
      return "raised";
    case ErrorKind::kUndefined:
      return "undefined";
    case ErrorKind::kType:
      return "type";
    case ErrorKind::kSecurity:
      return "security";
    case ErrorKind::kSyntax:
      return "syntax";
    case ErrorKind::kOther:
      return "other";
  }
  return "other";
}

absl::Status ToStatus(const TemplateError& error) {
  const std::string where =
      error.line > 0 ? base::StrCat("chat template, line ", error.line, ": ") : "chat template: ";
  // What the template itself says to the client needs no place in the template.
  absl::Status status = absl::InvalidArgumentError(
      error.kind == ErrorKind::kRaised ? error.message : base::StrCat(where, error.message));
  status.SetPayload(kPayload, absl::Cord(base::StrCat(ErrorKindName(error.kind), " ", error.line,
                                                      " ", error.message)));
  return status;
}

std::optional<TemplateError> TemplateErrorOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kPayload);
  if (!payload) return std::nullopt;
  const std::string text(*payload);
  const size_t first = text.find(' ');
  const size_t second = text.find(' ', first + 1);
  TemplateError error;
  for (const ErrorKind kind : kKinds) {
    if (text.substr(0, first) == ErrorKindName(kind)) error.kind = kind;
  }
  if (!absl::SimpleAtoi(text.substr(first + 1, second - first - 1), &error.line)) error.line = 0;
  error.message = text.substr(second + 1);
  return error;
}

struct ChatTemplate::Impl {
  Body body;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return SyntaxError(base::StrCat("a template of more than ", kMaxTemplateBytes, " bytes"), 1);
  }
  auto impl = std::make_unique<Impl>();
  TANDEM_ASSIGN_OR_RETURN(impl->body, ParseTemplate(source));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

absl::StatusOr<Rendered> ChatTemplate::Render(const nlohmann::ordered_json& variables,
                                              const RenderOptions& options) const {
  Interpreter interpreter(options);
  TaintedText text = interpreter.Run(impl_->body, variables);
  if (interpreter.failed()) {
    return ToStatus(*interpreter.error());
  }
  return Rendered{text.text(), text.spans()};
}

}  // namespace tandem::chat_template
