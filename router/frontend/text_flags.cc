#include "router/frontend/text_flags.h"

#include "common/base/files.h"
#include "common/base/strings.h"

namespace tandem::router {
namespace {

constexpr size_t kMaxTemplateBytes = 1u << 20;

}  // namespace

void DeclareTextFlags(base::ConfigSpec& spec, TextFlags& flags) {
  spec.String("chat-template", &flags.chat_template,
              "file with a chat template (Jinja) to use instead of the model's");
  spec.Choice("tool-call-parser", &flags.tool_call_parser,
              {"auto", "hermes", "llama3_json", "mistral"},
              "how the model writes tool calls; auto: as its chat template has it");
  spec.Choice("reasoning-parser", &flags.reasoning_parser, {"auto", "think", "none"},
              "whether <think> ... </think> is split off answers; auto: where the chat template "
              "knows these tags");
}

absl::StatusOr<ModelTextOptions> ReadTextFlags(const TextFlags& flags, int64_t now_unix_s) {
  ModelTextOptions options;
  if (!flags.chat_template.empty()) {
    auto source = base::ReadFileTail(flags.chat_template, 0, kMaxTemplateBytes + 1);
    if (!source.ok()) {
      return absl::InvalidArgumentError(
          base::StrCat("--chat-template: ", source.status().message()));
    }
    if (source->empty() || source->size() > kMaxTemplateBytes) {
      return absl::InvalidArgumentError(base::StrCat("--chat-template: ", flags.chat_template,
                                                     " is empty or larger than ", kMaxTemplateBytes,
                                                     " bytes"));
    }
    if (const absl::Status status = CheckChatTemplate(*source, now_unix_s); !status.ok()) {
      return absl::InvalidArgumentError(base::StrCat("--chat-template: ", flags.chat_template,
                                                     " cannot be used: ", status.message()));
    }
    options.chat_template = *std::move(source);
  }
  tool_calls::Format format = tool_calls::Format::kNone;
  if (ToolFormatFromName(flags.tool_call_parser, &format)) {
    options.tool_format = format;
  }
  if (flags.reasoning_parser != "auto") {
    options.reasoning = flags.reasoning_parser == "think";
  }
  return options;
}

}  // namespace tandem::router
