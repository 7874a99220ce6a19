#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem::tokenizer {

// Offset of the first byte that is no part of valid UTF-8 (overlong forms, surrogates and values
// over U+10FFFF are not valid); nothing when all of `text` is.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

struct CodePoint {
  char32_t value = 0;
  int bytes = 0;
};

// The code point that starts at `offset` of valid UTF-8.
CodePoint DecodeUtf8(std::string_view text, size_t offset);
// The code point that ends before `offset` > 0 of valid UTF-8.
CodePoint DecodeUtf8Before(std::string_view text, size_t offset);
void AppendUtf8(char32_t code_point, std::string* out);
std::u32string ToUtf32(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// Unicode normalization of valid UTF-8.
absl::StatusOr<std::string> Normalize(std::string_view text, NormalForm form);

// Unicode's White_Space.
bool IsWhiteSpace(char32_t c);
// \w of Unicode's regular expressions: letters, marks, decimal digits, connectors, joiners.
bool IsWordCharacter(char32_t c);

// Python's str predicates for one character.
bool IsPythonSpace(char32_t c);
bool IsPythonAlpha(char32_t c);
bool IsPythonDecimal(char32_t c);
bool IsPythonDigit(char32_t c);
bool IsPythonNumeric(char32_t c);
bool IsPythonPrintable(char32_t c);
bool IsMark(char32_t c);
bool IsUpperCase(char32_t c);
bool IsLowerCase(char32_t c);
bool IsTitleCase(char32_t c);

// Python's str.upper, lower, title of one character in its context: full case mappings. `Lower`
// knows the final sigma.
std::u32string UpperOf(char32_t c);
std::u32string TitleOf(char32_t c);
std::u32string LowerOf(std::u32string_view text, size_t index);

}  // namespace tandem::tokenizer
