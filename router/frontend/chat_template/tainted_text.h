#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "router/frontend/chat_template/chat_template.h"

namespace tandem::chat_template {

// Text in UTF-8 of which each byte is either trusted (written by the template) or not (a variable's
// value). Every operation on strings keeps the mark of the bytes it takes over.
class TaintedText {
 public:
  TaintedText() = default;
  TaintedText(std::string_view text, bool trusted) { Append(text, trusted); }

  void Append(std::string_view text, bool trusted);
  void Append(const TaintedText& other) { Append(other, 0, other.text_.size()); }
  // Bytes [begin, end) of `other`.
  void Append(const TaintedText& other, size_t begin, size_t end);
  TaintedText Part(size_t begin, size_t end) const;
  // The mark of the byte at `offset`.
  bool TrustedAt(size_t offset) const;

  const std::string& text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }
  const std::vector<TextSpan>& spans() const { return spans_; }
  // Jinja's Markup, which `safe` and `escape` give: what is added to it is escaped. Parts and
  // copies by Append are plain text.
  bool is_markup() const { return markup_; }
  void set_markup() { markup_ = true; }

 private:
  size_t SpanAt(size_t offset) const;

  std::string text_;
  bool markup_ = false;
  std::vector<TextSpan> spans_;  // in order, without gaps, neighbours differ
};

}  // namespace tandem::chat_template
