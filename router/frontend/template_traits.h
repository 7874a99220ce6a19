#pragma once

#include <string>
#include <string_view>

#include "router/frontend/chat_template/chat_template.h"
#include "router/frontend/tool_calls/output_delta.h"

namespace tandem::router {

// What a chat template can do, found by looking at it and by trying it.
struct TemplateTraits {
  bool knows_tools = false;   // `tools` reach the text
  bool knows_system = false;  // it takes a system message
  bool reasoning = false;     // its model puts its thoughts between <think> and </think>
  tool_calls::Format tool_format = tool_calls::Format::kHermes;  // how its model writes calls
  // Why a plain chat cannot be rendered; empty: it can.
  std::string problem;
};

TemplateTraits FindTraits(const chat_template::ChatTemplate& chat_template, std::string_view source,
                          int64_t now_unix_s);

// "line 3: ..." of an error of Parse or Render.
std::string DescribeTemplateError(const absl::Status& status);

// "hermes", "llama3_json", "mistral": vLLM's names. False for another one.
bool ToolFormatFromName(std::string_view name, tool_calls::Format* format);

}  // namespace tandem::router
