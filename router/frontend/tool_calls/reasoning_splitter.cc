#include "router/frontend/tool_calls/reasoning_splitter.h"

#include <algorithm>

namespace tandem::tool_calls {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kSpace = " \t\r\n";

}  // namespace

size_t PartialTagAtEnd(std::string_view text, std::string_view tag) {
  for (size_t length = std::min(text.size(), tag.size() - 1); length > 0; --length) {
    if (text.ends_with(tag.substr(0, length))) {
      return length;
    }
  }
  return 0;
}

void ReasoningSplitter::Append(std::string_view text, std::string* reasoning,
                               std::string* content) {
  if (at_ == At::kContent) {
    *content += text;
    return;
  }
  held_ += text;
  while (Step(reasoning)) {
  }
  if (at_ == At::kContent) {
    *content += held_;
    held_.clear();
  }
}

bool ReasoningSplitter::Step(std::string* reasoning) {
  if (at_ == At::kReasoning) {
    return StepReasoning(reasoning);
  }
  if (at_ == At::kContent) {
    return false;
  }
  const size_t begin = held_.find_first_not_of(kSpace);
  if (begin == std::string::npos) {
    return false;  // white space so far
  }
  if (at_ == At::kBegin) {
    const std::string_view rest = std::string_view(held_).substr(begin);
    if (rest.size() < kOpen.size() && kOpen.starts_with(rest)) {
      return false;
    }
    if (rest.starts_with(kOpen)) {
      held_.erase(0, begin + kOpen.size());
      at_ = At::kReasoningStart;
    } else {
      at_ = At::kContent;  // with its white space
    }
    return true;
  }
  held_.erase(0, begin);
  at_ = at_ == At::kReasoningStart ? At::kReasoning : At::kContent;
  return true;
}

bool ReasoningSplitter::StepReasoning(std::string* reasoning) {
  const size_t close = held_.find(kClose);
  const size_t end =
      close != std::string::npos ? close : held_.size() - PartialTagAtEnd(held_, kClose);
  // White space in front of what may be the tag is held back with it.
  const size_t last = std::string_view(held_).substr(0, end).find_last_not_of(kSpace);
  const size_t kept = last == std::string::npos ? 0 : last + 1;
  reasoning->append(held_, 0, kept);
  if (close == std::string::npos) {
    held_.erase(0, kept);
    return false;
  }
  held_.erase(0, close + kClose.size());
  at_ = At::kContentStart;
  return true;
}

void ReasoningSplitter::Finish(std::string* reasoning, std::string* content) {
  if (at_ == At::kReasoning) {
    *reasoning += held_;
  } else if (at_ == At::kBegin || at_ == At::kContent) {
    *content += held_;
  }
  held_.clear();
}

}  // namespace tandem::tool_calls
