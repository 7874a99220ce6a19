#include "router/frontend/template_traits.h"

#include "nlohmann/json.hpp"

namespace tandem::router {
namespace {

using Json = nlohmann::ordered_json;
using tool_calls::Format;

// A word that no template writes by itself.
constexpr char kProbe[] = "tandem_probe_function";

Json Variables(Json messages) {
  return {{"messages", std::move(messages)},
          {"add_generation_prompt", true},
          {"bos_token", ""},
          {"eos_token", ""},
          {"tools", nullptr},
          {"documents", nullptr}};
}

absl::StatusOr<chat_template::Rendered> Try(const chat_template::ChatTemplate& chat_template,
                                            const Json& variables, int64_t now_unix_s) {
  chat_template::RenderOptions options;
  options.now_unix_s = now_unix_s;
  return chat_template.Render(variables, options);
}

Json User(const char* text) { return {{"role", "user"}, {"content", text}}; }

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

Format FormatOf(std::string_view source) {
  if (Contains(source, "[TOOL_CALLS]")) {
    return Format::kMistral;
  }
  if (Contains(source, "<tool_call>")) {
    return Format::kHermes;
  }
  const bool llama = Contains(source, "<|python_tag|>") || Contains(source, "\"parameters\": ");
  return llama ? Format::kLlama3 : Format::kHermes;
}

}  // namespace

std::string DescribeTemplateError(const absl::Status& status) {
  const auto error = chat_template::TemplateErrorOf(status);
  if (!error) {
    return std::string(status.message());
  }
  return (error->line > 0 ? "line " + std::to_string(error->line) + ": " : "") + error->message;
}

bool ToolFormatFromName(std::string_view name, Format* format) {
  if (name == "hermes" || name == "qwen") {
    *format = Format::kHermes;
  } else if (name == "llama3_json") {
    *format = Format::kLlama3;
  } else if (name == "mistral") {
    *format = Format::kMistral;
  } else {
    return false;
  }
  return true;
}

TemplateTraits FindTraits(const chat_template::ChatTemplate& chat_template, std::string_view source,
                          int64_t now_unix_s) {
  TemplateTraits traits;
  traits.reasoning = Contains(source, "</think>");
  traits.tool_format = FormatOf(source);
  Json variables = Variables(Json::array({User("Hello.")}));
  const auto plain = Try(chat_template, variables, now_unix_s);
  if (!plain.ok()) {
    const auto error = chat_template::TemplateErrorOf(plain.status());
    const bool raised = error && error->kind == chat_template::ErrorKind::kRaised;
    traits.problem = raised ? "" : DescribeTemplateError(plain.status());
  }
  variables["tools"] =
      Json::array({{{"type", "function"},
                    {"function",
                     {{"name", kProbe},
                      {"description", "None."},
                      {"parameters", {{"type", "object"}, {"properties", Json::object()}}}}}}});
  const auto with_tools = Try(chat_template, variables, now_unix_s);
  traits.knows_tools = with_tools.ok() && Contains(with_tools->text, kProbe);
  const auto with_system =
      Try(chat_template,
          Variables(Json::array({{{"role", "system"}, {"content", kProbe}}, User("Hello.")})),
          now_unix_s);
  traits.knows_system = with_system.ok() && Contains(with_system->text, kProbe);
  return traits;
}

}  // namespace tandem::router
