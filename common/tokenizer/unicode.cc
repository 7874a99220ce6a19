#include "common/tokenizer/unicode.h"

#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "absl/status/status.h"

namespace tandem::tokenizer {
namespace {

// Length of the valid character at `text`, or 0 (Unicode, table 3-7).
size_t ValidCharacter(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  const auto follows = [&](size_t i) { return (at(i) & 0xC0u) == 0x80u; };
  const unsigned lead = at(0);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return follows(1) ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool overlong = lead == 0xE0 && at(1) < 0xA0;
    const bool surrogate = lead == 0xED && at(1) > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool overlong = lead == 0xF0 && at(1) < 0x90;
    const bool too_large = lead == 0xF4 && at(1) > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !too_large ? 4 : 0;
  }
  return 0;
}

UChar32 Icu(char32_t c) { return static_cast<UChar32>(c); }

std::u32string FromIcu(const icu::UnicodeString& text) {
  std::u32string out;
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    out.push_back(static_cast<char32_t>(text.char32At(i)));
  }
  return out;
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<uint8_t>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t length = ValidCharacter(text.substr(at, 4));
    if (length == 0) {
      return at;
    }
    at += length;
  }
  return std::nullopt;
}

CodePoint DecodeUtf8(std::string_view text, size_t offset) {
  const auto at = [&](size_t i) -> char32_t {
    return offset + i < text.size() ? static_cast<uint8_t>(text[offset + i]) & 0x3Fu : 0u;
  };
  const auto lead = static_cast<uint8_t>(text[offset]);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1Fu) << 6 | at(1), 2};
  if (lead < 0xF0) return {(lead & 0x0Fu) << 12 | at(1) << 6 | at(2), 3};
  return {(lead & 0x07u) << 18 | at(1) << 12 | at(2) << 6 | at(3), 4};
}

CodePoint DecodeUtf8Before(std::string_view text, size_t offset) {
  size_t start = offset - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0u) == 0x80u) {
    --start;
  }
  return DecodeUtf8(text, start);
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80u | ((c >> shift) & 0x3Fu)); };
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
  } else if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0u | c >> 6));
    out->push_back(tail(0));
  } else if (c < 0x10000) {
    out->push_back(static_cast<char>(0xE0u | c >> 12));
    out->push_back(tail(6));
    out->push_back(tail(0));
  } else {
    out->push_back(static_cast<char>(0xF0u | c >> 18));
    out->push_back(tail(12));
    out->push_back(tail(6));
    out->push_back(tail(0));
  }
}

std::u32string ToUtf32(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeUtf8(text, at);
    out.push_back(c.value);
    at += static_cast<size_t>(c.bytes);
  }
  return out;
}

absl::StatusOr<std::string> Normalize(std::string_view text, NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(error);
      break;
    case NormalForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(error);
      break;
    case NormalForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(error);
      break;
    case NormalForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(error);
      break;
  }
  std::string out;
  if (U_SUCCESS(error)) {
    icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
    normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                              sink, nullptr, error);
  }
  if (U_FAILURE(error)) {
    return absl::InternalError(std::string("Unicode normalization failed: ") + u_errorName(error));
  }
  return out;
}

bool IsWhiteSpace(char32_t c) { return u_isUWhiteSpace(Icu(c)); }

bool IsWordCharacter(char32_t c) {
  return u_isUAlphabetic(Icu(c)) ||
         (U_MASK(u_charType(Icu(c))) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(Icu(c), UCHAR_JOIN_CONTROL);
}

bool IsPythonSpace(char32_t c) { return (c >= 0x1C && c <= 0x1F) || u_isUWhiteSpace(Icu(c)); }

bool IsPythonAlpha(char32_t c) { return (U_MASK(u_charType(Icu(c))) & U_GC_L_MASK) != 0; }

bool IsPythonDecimal(char32_t c) { return u_charType(Icu(c)) == U_DECIMAL_DIGIT_NUMBER; }

bool IsPythonDigit(char32_t c) {
  const int32_t type = u_getIntPropertyValue(Icu(c), UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}

bool IsPythonNumeric(char32_t c) {
  return u_getIntPropertyValue(Icu(c), UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}

bool IsPythonPrintable(char32_t c) {
  return c == ' ' || (U_MASK(u_charType(Icu(c))) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

bool IsMark(char32_t c) { return (U_MASK(u_charType(Icu(c))) & U_GC_M_MASK) != 0; }
bool IsUpperCase(char32_t c) { return u_isUUppercase(Icu(c)); }
bool IsLowerCase(char32_t c) { return u_isULowercase(Icu(c)); }
bool IsTitleCase(char32_t c) { return u_charType(Icu(c)) == U_TITLECASE_LETTER; }

// Most text is ASCII, and ICU's strings are slow.
constexpr char32_t kAsciiEnd = 0x80;

std::u32string UpperOf(char32_t c) {
  if (c < kAsciiEnd) return {c >= 'a' && c <= 'z' ? c - 32 : c};
  icu::UnicodeString text(Icu(c));
  return FromIcu(text.toUpper(icu::Locale::getRoot()));
}

std::u32string TitleOf(char32_t c) {
  if (c < kAsciiEnd) return UpperOf(c);
  icu::UnicodeString text(Icu(c));
  const std::u32string upper = FromIcu(text.toUpper(icu::Locale::getRoot()));
  if (upper.size() == 1) {
    return {static_cast<char32_t>(u_totitle(Icu(c)))};
  }
  // A full mapping such as "Ss" for U+00DF or "Fi" for U+FB01: the first of it stays upper.
  std::u32string title = upper.substr(0, 1);
  for (const char32_t rest : upper.substr(1)) {
    title.push_back(static_cast<char32_t>(u_tolower(Icu(rest))));
  }
  return title;
}

std::u32string LowerOf(std::u32string_view text, size_t index) {
  if (const char32_t c = text[index]; c < kAsciiEnd) return {c >= 'A' && c <= 'Z' ? c + 32 : c};
  constexpr char32_t kSigma = 0x3A3;
  const auto cased = [](char32_t c) { return u_hasBinaryProperty(Icu(c), UCHAR_CASED) != 0; };
  const auto ignorable = [](char32_t c) {
    return u_hasBinaryProperty(Icu(c), UCHAR_CASE_IGNORABLE) != 0;
  };
  if (text[index] == kSigma) {
    size_t before = index;
    while (before > 0 && ignorable(text[before - 1])) --before;
    size_t after = index + 1;
    while (after < text.size() && ignorable(text[after])) ++after;
    const bool final =
        before > 0 && cased(text[before - 1]) && !(after < text.size() && cased(text[after]));
    return {final ? char32_t{0x3C2} : char32_t{0x3C3}};
  }
  icu::UnicodeString lower(Icu(text[index]));
  return FromIcu(lower.toLower(icu::Locale::getRoot()));
}

}  // namespace tandem::tokenizer
