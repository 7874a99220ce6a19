#include "router/frontend/chat_template/text_operations.h"

#include <algorithm>

#include "common/tokenizer/unicode.h"

namespace tandem::chat_template {
namespace {

using tokenizer::DecodeUtf8;
using tokenizer::DecodeUtf8Before;

// Writes for each code point what `map` makes of it, with its mark.
template <typename Map>
TaintedText MapCodePoints(const TaintedText& text, Map map) {
  const std::u32string wide = tokenizer::ToUtf32(text.text());
  TaintedText out;
  size_t at = 0;
  for (size_t i = 0; i < wide.size(); ++i) {
    std::string bytes;
    for (const char32_t c : map(wide, i)) tokenizer::AppendUtf8(c, &bytes);
    out.Append(bytes, text.TrustedAt(at));
    at += static_cast<size_t>(DecodeUtf8(text.text(), at).bytes);
  }
  return out;
}

bool IsCased(char32_t c) {
  return tokenizer::IsUpperCase(c) || tokenizer::IsLowerCase(c) || tokenizer::IsTitleCase(c);
}

bool IsLineEnd(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::vector<TaintedText> SplitAtSpaces(const TaintedText& text, int64_t max_splits) {
  std::vector<TaintedText> parts;
  const std::string& bytes = text.text();
  size_t at = 0;
  while (true) {
    while (at < bytes.size()) {
      const auto c = DecodeUtf8(bytes, at);
      if (!tokenizer::IsPythonSpace(c.value)) break;
      at += static_cast<size_t>(c.bytes);
    }
    if (at >= bytes.size()) return parts;
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) >= max_splits) {
      parts.push_back(Strip(text.Part(at, bytes.size()), std::nullopt, false, true));
      return parts;
    }
    const size_t begin = at;
    while (at < bytes.size()) {
      const auto c = DecodeUtf8(bytes, at);
      if (tokenizer::IsPythonSpace(c.value)) break;
      at += static_cast<size_t>(c.bytes);
    }
    parts.push_back(text.Part(begin, at));
  }
}

std::vector<TaintedText> SplitAtSpacesFromRight(const TaintedText& text, int64_t max_splits) {
  std::vector<TaintedText> parts;
  const std::string& bytes = text.text();
  size_t at = bytes.size();
  while (true) {
    while (at > 0) {
      const auto c = DecodeUtf8Before(bytes, at);
      if (!tokenizer::IsPythonSpace(c.value)) break;
      at -= static_cast<size_t>(c.bytes);
    }
    if (at == 0) break;
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) >= max_splits) {
      parts.push_back(Strip(text.Part(0, at), std::nullopt, true, false));
      break;
    }
    const size_t end = at;
    while (at > 0) {
      const auto c = DecodeUtf8Before(bytes, at);
      if (tokenizer::IsPythonSpace(c.value)) break;
      at -= static_cast<size_t>(c.bytes);
    }
    parts.push_back(text.Part(at, end));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

}  // namespace

TaintedText Upper(const TaintedText& text) {
  return MapCodePoints(
      text, [](const std::u32string& wide, size_t i) { return tokenizer::UpperOf(wide[i]); });
}

TaintedText Lower(const TaintedText& text) {
  return MapCodePoints(
      text, [](const std::u32string& wide, size_t i) { return tokenizer::LowerOf(wide, i); });
}

TaintedText Title(const TaintedText& text) {
  return MapCodePoints(text, [](const std::u32string& wide, size_t i) {
    return i > 0 && IsCased(wide[i - 1]) ? tokenizer::LowerOf(wide, i)
                                         : tokenizer::TitleOf(wide[i]);
  });
}

TaintedText Capitalize(const TaintedText& text) {
  return MapCodePoints(text, [](const std::u32string& wide, size_t i) {
    return i > 0 ? tokenizer::LowerOf(wide, i) : tokenizer::TitleOf(wide[i]);
  });
}

TaintedText SwapCase(const TaintedText& text) {
  return MapCodePoints(text, [](const std::u32string& wide, size_t i) {
    if (tokenizer::IsUpperCase(wide[i])) return tokenizer::LowerOf(wide, i);
    return tokenizer::IsLowerCase(wide[i]) ? tokenizer::UpperOf(wide[i])
                                           : std::u32string(1, wide[i]);
  });
}

TaintedText Strip(const TaintedText& text, const std::optional<std::string>& chars, bool left,
                  bool right) {
  const std::u32string set = chars ? tokenizer::ToUtf32(*chars) : std::u32string();
  const auto strips = [&](char32_t c) {
    return chars ? set.find(c) != std::u32string::npos : tokenizer::IsPythonSpace(c);
  };
  const std::string& bytes = text.text();
  size_t begin = 0;
  size_t end = bytes.size();
  while (left && begin < end) {
    const auto c = DecodeUtf8(bytes, begin);
    if (!strips(c.value)) break;
    begin += static_cast<size_t>(c.bytes);
  }
  while (right && begin < end) {
    const auto c = DecodeUtf8Before(bytes, end);
    if (!strips(c.value)) break;
    end -= static_cast<size_t>(c.bytes);
  }
  return text.Part(begin, end);
}

std::vector<TaintedText> Split(const TaintedText& text, const std::optional<std::string>& separator,
                               int64_t max_splits) {
  if (!separator) return SplitAtSpaces(text, max_splits);
  std::vector<TaintedText> parts;
  size_t begin = 0;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t found = text.text().find(*separator, begin);
    if (found == std::string::npos) break;
    parts.push_back(text.Part(begin, found));
    begin = found + separator->size();
  }
  parts.push_back(text.Part(begin, text.size()));
  return parts;
}

std::vector<TaintedText> SplitFromRight(const TaintedText& text,
                                        const std::optional<std::string>& separator,
                                        int64_t max_splits) {
  if (!separator) return SplitAtSpacesFromRight(text, max_splits);
  std::vector<TaintedText> parts;
  size_t end = text.size();
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    if (end < separator->size()) break;
    const size_t found = text.text().rfind(*separator, end - separator->size());
    if (found == std::string::npos) break;
    parts.push_back(text.Part(found + separator->size(), end));
    end = found;
  }
  parts.push_back(text.Part(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<TaintedText> SplitLines(const TaintedText& text, bool keep_ends) {
  std::vector<TaintedText> lines;
  const std::string& bytes = text.text();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const auto c = DecodeUtf8(bytes, at);
    const size_t end = at;
    at += static_cast<size_t>(c.bytes);
    if (!IsLineEnd(c.value)) continue;
    if (c.value == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back(text.Part(begin, keep_ends ? at : end));
    begin = at;
  }
  if (begin < bytes.size()) lines.push_back(text.Part(begin, bytes.size()));
  return lines;
}

std::optional<TaintedText> Replace(const TaintedText& text, std::string_view old_text,
                                   const TaintedText& new_text, int64_t count, size_t max_bytes) {
  TaintedText out;
  const std::string& bytes = text.text();
  size_t done = 0;
  size_t at = 0;
  for (int64_t made = 0; count < 0 || made < count; ++made) {
    const size_t found = bytes.find(old_text, at);
    if (found == std::string::npos) break;
    out.Append(text, done, found);
    out.Append(new_text);
    if (out.size() > max_bytes) return std::nullopt;
    done = found + old_text.size();
    at = done;
    if (old_text.empty()) {  // between all characters
      if (at >= bytes.size()) break;
      at += static_cast<size_t>(DecodeUtf8(bytes, at).bytes);
    }
  }
  out.Append(text, done, bytes.size());
  return out;
}

TaintedText Escaped(const TaintedText& text) {
  if (text.is_markup()) {
    return text;
  }
  TaintedText out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.text()[i];
    const std::string_view entity = c == '&'    ? "&amp;"
                                    : c == '<'  ? "&lt;"
                                    : c == '>'  ? "&gt;"
                                    : c == '"'  ? "&#34;"
                                    : c == '\'' ? "&#39;"
                                                : "";
    if (entity.empty()) {
      out.Append(text, i, i + 1);
    } else {
      out.Append(entity, text.TrustedAt(i));
    }
  }
  out.set_markup();
  return out;
}

int64_t CountCodePoints(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0u) != 0x80u; });
}

}  // namespace tandem::chat_template
