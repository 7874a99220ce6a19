#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "router/frontend/chat_template/tainted_text.h"

// Python's operations on strings, keeping the marks of what they take over. Time is linear in what
// they read and write.
namespace tandem::chat_template {

TaintedText Upper(const TaintedText& text);
TaintedText Lower(const TaintedText& text);
TaintedText Title(const TaintedText& text);
TaintedText Capitalize(const TaintedText& text);
TaintedText SwapCase(const TaintedText& text);

// Without `chars`: white space.
TaintedText Strip(const TaintedText& text, const std::optional<std::string>& chars, bool left,
                  bool right);

// `separator` is not empty; without one: runs of white space. `max_splits` < 0: no limit.
std::vector<TaintedText> Split(const TaintedText& text, const std::optional<std::string>& separator,
                               int64_t max_splits);
std::vector<TaintedText> SplitFromRight(const TaintedText& text,
                                        const std::optional<std::string>& separator,
                                        int64_t max_splits);
std::vector<TaintedText> SplitLines(const TaintedText& text, bool keep_ends);

// `count` < 0: all. Nothing when the result would be longer than `max_bytes`.
std::optional<TaintedText> Replace(const TaintedText& text, std::string_view old_text,
                                   const TaintedText& new_text, int64_t count, size_t max_bytes);

// Without the characters that mean something in HTML; Jinja's Markup stays as it is.
TaintedText Escaped(const TaintedText& text);

int64_t CountCodePoints(std::string_view text);

}  // namespace tandem::chat_template
