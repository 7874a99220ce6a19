#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace tandem::chat_template {

// What went wrong in a template. kRaised: the template itself refused (raise_exception); its
// message is meant for the client.
enum class ErrorKind { kRaised, kUndefined, kType, kSecurity, kSyntax, kOther };

struct TemplateError {
  ErrorKind kind = ErrorKind::kOther;
  std::string message;  // without the line
  int line = 0;         // in the template, from 1; 0: unknown
};

// "raised", "undefined", ...
std::string_view ErrorKindName(ErrorKind kind);
// What stands behind a status that Parse or Render returned; nothing for any other status.
std::optional<TemplateError> TemplateErrorOf(const absl::Status& status);

struct RenderLimits {
  int64_t max_steps = 2'000'000;          // expressions and statements evaluated
  size_t max_output_bytes = 16u << 20;    // also of any one string or list made on the way
  int64_t max_total_bytes = 256ll << 20;  // of all strings and lists made on the way
  int max_depth = 100;                    // nested calls, loops and values
};

struct RenderOptions {
  int64_t now_unix_s = 0;  // for strftime_now, which formats it as UTC
  RenderLimits limits;
  // Variables whose text is as trusted as the template's own (they name control tokens).
  std::vector<std::string> trusted_variables = {"bos_token", "eos_token"};
};

// Bytes [begin, end) of a rendered text, all from the template (or a trusted variable), or all from
// the variables' values.
struct TextSpan {
  size_t begin = 0;
  size_t end = 0;
  bool trusted = false;
};

struct Rendered {
  std::string text;
  std::vector<TextSpan> spans;  // in order, without gaps; neighbours differ in `trusted`
};

// A compiled chat template: the Jinja that chat templates use, with the meaning that transformers
// gives it (trim_blocks, lstrip_blocks, loop controls, tojson, raise_exception, strftime_now, a
// sandbox). Immutable and thread-safe. Templates and variables are untrusted: every error is
// InvalidArgument and readable by TemplateErrorOf; one of a limit is of kind kOther.
class ChatTemplate {
 public:
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(std::string_view source);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // `variables` is an object: messages, add_generation_prompt, bos_token, tools, ...
  absl::StatusOr<Rendered> Render(const nlohmann::ordered_json& variables,
                                  const RenderOptions& options) const;

 private:
  struct Impl;
  explicit ChatTemplate(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::chat_template
