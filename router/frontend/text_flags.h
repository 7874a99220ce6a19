#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/config.h"
#include "router/frontend/model_text.h"

namespace tandem::router {

// Flags about the text of chats, of the router and of `tandem serve`.
struct TextFlags {
  std::string chat_template;  // a file
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
};

void DeclareTextFlags(base::ConfigSpec& spec, TextFlags& flags);
// Reads the file and tries it. InvalidArgument names the flag, and the line of a template that
// cannot be used.
absl::StatusOr<ModelTextOptions> ReadTextFlags(const TextFlags& flags, int64_t now_unix_s);

}  // namespace tandem::router
