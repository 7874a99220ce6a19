#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "router/frontend/tool_calls/call_scanner.h"
#include "router/frontend/tool_calls/output_delta.h"

namespace tandem::tool_calls {

struct ToolCallOptions {
  Format format = Format::kNone;
  // The text is nothing but calls: a grammar sees to it.
  bool enforced = false;
  // Where a format has no mark of its own, only these are calls.
  std::vector<std::string> names;
  int max_calls = 1 << 16;  // further ones are dropped
  std::string id_seed;      // what makes ids differ between answers
};

// Finds the tool calls in a text that comes in pieces. Text that only looked like a call's
// beginning comes out as content. Not thread-safe.
class ToolCallParser {
 public:
  explicit ToolCallParser(ToolCallOptions options);

  void Append(std::string_view text, OutputDelta* out);
  // The text ends: gives what was held back.
  void Finish(OutputDelta* out);

  int calls() const { return calls_; }

 private:
  enum class At { kText, kBeforeCall, kCall, kNamedCall, kAfterCall };

  // Each takes something off buffer_; false when more text is needed.
  bool Step(OutputDelta* out);
  bool StepText(OutputDelta* out);
  bool StepBareText(OutputDelta* out);
  bool StepBeforeCall(OutputDelta* out);
  bool StepCall(OutputDelta* out);
  bool StepNamedCall(OutputDelta* out);
  bool StepAfterCall(OutputDelta* out);

  void BeginCall(At at);
  void Report(OutputDelta* out);
  // What was taken for a call is none.
  void GiveUp(OutputDelta* out);
  void AddContent(std::string_view text, OutputDelta* out);
  // Drops white space at the buffer's start; false when nothing is left.
  bool SkipSpace();
  bool IsKnown(const std::string& name) const;
  bool dropping() const { return call_index_ >= options_.max_calls; }
  std::string MakeId() const;

  ToolCallOptions options_;
  std::string_view tag_;  // what calls begin with; empty: they have no mark
  At at_ = At::kText;
  std::string buffer_;
  std::string raw_;     // the call so far as it was written, until it is announced
  std::string spaces_;  // of the content; kept only if more content follows
  CallScanner scanner_;
  bool in_list_ = false;
  bool announced_ = false;
  bool named_ = false;         // the call is written name{arguments}
  bool bare_decided_ = false;  // a text without a mark is known to be content
  int call_index_ = -1;
  int calls_ = 0;
};

}  // namespace tandem::tool_calls
