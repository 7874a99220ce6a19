#include "router/frontend/chat_template/number_text.h"

#include <cmath>
#include <cstdlib>
#include <string>

namespace tandem::chat_template {
namespace {

std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\r\f\v";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

int DigitOf(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'z') return c - 'a' + 10;
  if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
  return 99;
}

}  // namespace

std::optional<Integer> ParseInteger(std::string_view text, int base) {
  text = Stripped(text);
  if (base < 2 || base > 36 || text.empty()) return std::nullopt;
  const bool negative = text[0] == '-';
  if (text[0] == '-' || text[0] == '+') text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    if ((mark == 'x' && base == 16) || (mark == 'o' && base == 8) || (mark == 'b' && base == 2)) {
      text.remove_prefix(2);
    }
  }
  Integer value = 0;
  bool digit_before = false;
  for (const char c : text) {
    if (c == '_' && digit_before) {
      digit_before = false;
      continue;
    }
    const int digit = DigitOf(c);
    if (digit >= base || __builtin_mul_overflow(value, Integer{base}, &value) ||
        __builtin_add_overflow(value, Integer{digit}, &value)) {
      return std::nullopt;
    }
    digit_before = true;
  }
  if (!digit_before) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> ParseFloat(std::string_view text) {
  text = Stripped(text);
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between =
        i > 0 && i + 1 < text.size() && DigitOf(text[i - 1]) < 10 && DigitOf(text[i + 1]) < 10;
    if (text[i] == '_' && between) continue;
    if (text[i] == 'x' || text[i] == 'X' || text[i] == '(') return std::nullopt;
    plain.push_back(text[i]);
  }
  if (plain.empty()) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(plain.c_str(), &end);
  if (end != plain.c_str() + plain.size()) return std::nullopt;
  return value;
}

std::optional<Integer> IntegerOfFloat(double value) {
  if (!std::isfinite(value) || std::fabs(value) >= 0x1p126) return std::nullopt;
  return static_cast<Integer>(std::trunc(value));
}

}  // namespace tandem::chat_template
