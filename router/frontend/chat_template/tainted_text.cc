#include "router/frontend/chat_template/tainted_text.h"

#include <algorithm>

namespace tandem::chat_template {

void TaintedText::Append(std::string_view text, bool trusted) {
  if (text.empty()) {
    return;
  }
  const size_t begin = text_.size();
  text_.append(text);
  if (!spans_.empty() && spans_.back().trusted == trusted) {
    spans_.back().end = text_.size();
  } else {
    spans_.push_back({begin, text_.size(), trusted});
  }
}

void TaintedText::Append(const TaintedText& other, size_t begin, size_t end) {
  end = std::min(end, other.text_.size());
  if (begin >= end) {
    return;
  }
  const std::string_view all = other.text_;
  for (size_t i = other.SpanAt(begin); begin < end; ++i) {
    const TextSpan span = other.spans_[i];
    const size_t to = std::min(span.end, end);
    Append(all.substr(begin, to - begin), span.trusted);
    begin = to;
  }
}

TaintedText TaintedText::Part(size_t begin, size_t end) const {
  TaintedText part;
  part.Append(*this, begin, end);
  return part;
}

bool TaintedText::TrustedAt(size_t offset) const {
  return offset < text_.size() && spans_[SpanAt(offset)].trusted;
}

size_t TaintedText::SpanAt(size_t offset) const {
  const auto it = std::upper_bound(spans_.begin(), spans_.end(), offset,
                                   [](size_t at, const TextSpan& span) { return at < span.end; });
  return static_cast<size_t>(it - spans_.begin());
}

}  // namespace tandem::chat_template
