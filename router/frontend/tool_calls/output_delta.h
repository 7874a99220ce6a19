#pragma once

#include <string>
#include <vector>

namespace tandem::tool_calls {

// What a stream adds to a tool call.
struct CallDelta {
  int index = 0;   // of the call in its answer
  std::string id;  // in the call's first delta only, as is the name
  std::string name;
  std::string arguments;  // text of a JSON object, in pieces
};

// What a piece of a model's text turned out to be, in this order.
struct OutputDelta {
  std::string reasoning;
  std::string content;
  std::vector<CallDelta> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

// How a model writes its tool calls.
enum class Format {
  kNone,
  kHermes,   // <tool_call>{"name": ..., "arguments": {...}}</tool_call>; Qwen and others too
  kLlama3,   // the whole text is {"name": ..., "parameters": {...}}
  kMistral,  // [TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...], or [TOOL_CALLS]name{...}
};

}  // namespace tandem::tool_calls
