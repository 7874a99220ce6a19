#pragma once

#include <string>
#include <string_view>

namespace tandem::tool_calls {

// Splits <think>reasoning</think> off the start of a text that comes in pieces. White space next to
// the tags belongs to neither part. Not thread-safe.
class ReasoningSplitter {
 public:
  // `inside`: the prompt ended with <think>, so that the text begins with reasoning.
  explicit ReasoningSplitter(bool inside) : at_(inside ? At::kReasoningStart : At::kBegin) {}

  void Append(std::string_view text, std::string* reasoning, std::string* content);
  // The text ends: gives what was held back.
  void Finish(std::string* reasoning, std::string* content);

  bool inside() const { return at_ == At::kReasoningStart || at_ == At::kReasoning; }

 private:
  enum class At { kBegin, kReasoningStart, kReasoning, kContentStart, kContent };

  // One step over held_; false when more text is needed.
  bool Step(std::string* reasoning);
  bool StepReasoning(std::string* reasoning);

  At at_;
  std::string held_;
};

// The length of the longest tail of `text` with which `tag` may begin, less than the whole tag.
size_t PartialTagAtEnd(std::string_view text, std::string_view tag);

}  // namespace tandem::tool_calls
