#include "common/tokenizer/normalizer.h"

#include <optional>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem::tokenizer {
namespace {

absl::StatusOr<std::string> ReplaceMatches(const Regex& regex, std::string_view text,
                                           const std::string& content) {
  std::string out;
  size_t done = 0;
  Regex::Matches matches(regex, text);
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<TextRange> match, matches.Next());
    if (!match) break;
    out.append(text, done, match->begin - done);
    out.append(content);
    done = match->end;
  }
  out.append(text, done);
  return out;
}

std::string Strip(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const CodePoint c = DecodeUtf8(text, 0);
    if (!IsWhiteSpace(c.value)) break;
    text.remove_prefix(static_cast<size_t>(c.bytes));
  }
  while (right && !text.empty()) {
    const CodePoint c = DecodeUtf8Before(text, text.size());
    if (!IsWhiteSpace(c.value)) break;
    text.remove_suffix(static_cast<size_t>(c.bytes));
  }
  return std::string(text);
}

std::string Lowercase(std::string_view text) {
  const std::u32string wide = ToUtf32(text);
  std::string out;
  for (const char32_t c : wide) {
    const std::u32string one(1, c);  // Rust's char::to_lowercase knows no context
    for (const char32_t lower : LowerOf(one, 0)) AppendUtf8(lower, &out);
  }
  return out;
}

std::string StripAccents(std::string_view text) {
  std::string out;
  for (const char32_t c : ToUtf32(text)) {
    if (!IsMark(c)) AppendUtf8(c, &out);
  }
  return out;
}

// As tokenizers does it, which is not quite as sentencepiece does: a short grapheme that begins
// with a mapped text becomes that text's replacement as a whole; others are mapped by character.
absl::StatusOr<std::string> ApplyCharsMap(const Regex& grapheme, const CharsMap& map,
                                          std::string_view text) {
  constexpr size_t kShort = 6;
  std::string out;
  Regex::Matches matches(grapheme, text);
  while (true) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<TextRange> range, matches.Next());
    if (!range) break;
    std::string_view part = text.substr(range->begin, range->end - range->begin);
    if (part.size() < kShort) {
      if (const CharsMap::Match match = map.Shortest(part); match.bytes > 0) {
        out += match.replacement;
        continue;
      }
    }
    while (!part.empty()) {
      const std::string_view character =
          part.substr(0, static_cast<size_t>(DecodeUtf8(part, 0).bytes));
      const CharsMap::Match match = map.Shortest(character);
      out += match.bytes > 0 ? match.replacement : character;
      part.remove_prefix(character.size());
    }
  }
  return out;
}

absl::StatusOr<std::string> ApplyStep(const NormalizerStep& step, std::string text) {
  switch (step.kind) {
    case NormalizerStep::Kind::kForm:
      return Normalize(text, step.form);
    case NormalizerStep::Kind::kReplace:
      return ReplaceAll(text, step.pattern, step.content);
    case NormalizerStep::Kind::kReplaceRegex:
      return ReplaceMatches(*step.regex, text, step.content);
    case NormalizerStep::Kind::kPrepend:
      return text.empty() ? text : step.content + text;
    case NormalizerStep::Kind::kStrip:
      return Strip(text, step.left, step.right);
    case NormalizerStep::Kind::kLowercase:
      return Lowercase(text);
    case NormalizerStep::Kind::kStripAccents:
      return StripAccents(text);
    case NormalizerStep::Kind::kPrecompiled:
      return ApplyCharsMap(*step.regex, *step.charsmap, text);
  }
  return text;
}

}  // namespace

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content) {
  if (pattern.empty()) {
    return std::string(text);
  }
  std::string out;
  size_t done = 0;
  for (size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, done)) {
    out.append(text, done, at - done);
    out.append(content);
    done = at + pattern.size();
  }
  out.append(text, done);
  return out;
}

absl::StatusOr<std::string> ApplyNormalizer(const std::vector<NormalizerStep>& steps,
                                            std::string_view text) {
  std::string out(text);
  for (const NormalizerStep& step : steps) {
    TANDEM_ASSIGN_OR_RETURN(out, ApplyStep(step, std::move(out)));
  }
  return out;
}

}  // namespace tandem::tokenizer
