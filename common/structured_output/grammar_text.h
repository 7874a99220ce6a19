#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/structured_output/grammar_spec.h"

namespace tandem::structured_output {

// The grammar of a request in XGrammar's notation. InvalidArgument, Unimplemented and
// ResourceExhausted say what is wrong with it or not supported. Takes a while for large schemas.
absl::StatusOr<std::string> GrammarText(const GrammarSpec& spec);

// Calls of functions in the text that a model writes.
struct ToolCalls {
  struct Tool {
    std::string name;
    std::string parameters;  // a JSON schema; empty: any object
  };
  std::vector<Tool> tools;
  // The whole: prefix call (separator call)* suffix; a call: call_begin {"name": ..., KEY: ...}
  // call_end.
  std::string prefix, call_begin, call_end, separator, suffix;
  std::string arguments_key = "arguments";
  int max_calls = 1;
  // Off: any text, in which each `call_begin` (must not be empty) starts a whole call.
  bool required = true;
};

// A spec of kind kToolCalls.
GrammarSpec ToolCallsSpec(const ToolCalls& calls, std::string param);

}  // namespace tandem::structured_output
