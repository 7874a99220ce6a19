#pragma once

#include <optional>
#include <string_view>

#include "router/frontend/tool_calls/output_delta.h"
#include "router/frontend/tool_calls/reasoning_splitter.h"
#include "router/frontend/tool_calls/tool_call_parser.h"

namespace tandem::tool_calls {

struct OutputParserOptions {
  bool splits_reasoning = false;
  bool starts_in_reasoning = false;
  bool drops_reasoning = false;
  ToolCallOptions tools;
};

// Takes a chat's text apart, as it comes: reasoning, content, tool calls. Not thread-safe.
class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  void Append(std::string_view text, OutputDelta* out);
  void Finish(OutputDelta* out);

  bool in_reasoning() const { return splitter_ && splitter_->inside(); }
  int calls() const { return tools_.calls(); }

 private:
  std::optional<ReasoningSplitter> splitter_;
  bool drops_reasoning_;
  ToolCallParser tools_;
};

}  // namespace tandem::tool_calls
