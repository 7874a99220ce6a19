#include "router/frontend/chat_template/lexer.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/unicode.h"
#include "router/frontend/chat_template/errors.h"

namespace tandem::chat_template {
namespace {

using base::StrCat;
using tokenizer::DecodeUtf8;

constexpr size_t kNone = std::string_view::npos;

// Newlines as "\n", without the last one.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

bool IsNameStart(char32_t c) { return c == '_' || tokenizer::IsPythonAlpha(c); }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      TANDEM_RETURN_IF_ERROR(NextTag());
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  // Text up to the next tag, then the tag.
  absl::Status NextTag() {
    size_t begin = at_;
    while (true) {
      begin = source_.find('{', begin);
      if (begin == kNone || begin + 1 >= source_.size()) {
        AddText(source_.substr(at_));
        at_ = source_.size();
        return absl::OkStatus();
      }
      const char next = source_[begin + 1];
      if (next == '{' || next == '%' || next == '#') break;
      ++begin;
    }
    const char kind = source_[begin + 1];
    const char sign = begin + 2 < source_.size() ? source_[begin + 2] : ' ';
    const bool has_sign = sign == '-' || sign == '+';
    AddText(Trimmed(source_.substr(at_, begin - at_), has_sign ? sign : ' ', kind == '{'));
    Advance(begin + (has_sign ? 3 : 2));
    if (kind == '#') return SkipComment();
    if (kind == '%' && SkipWord("raw")) return Raw();
    Add(kind == '{' ? TokenKind::kPrintBegin : TokenKind::kStatementBegin, "");
    line_starting_ = false;
    return Inside(kind == '{');
  }

  // What white space control leaves of the text before a tag.
  std::string_view Trimmed(std::string_view text, char sign, bool is_print) const {
    if (sign == '-') {
      while (!text.empty()) {
        const auto last = tokenizer::DecodeUtf8Before(text, text.size());
        if (!tokenizer::IsPythonSpace(last.value)) break;
        text.remove_suffix(static_cast<size_t>(last.bytes));
      }
      return text;
    }
    if (sign == '+' || is_print) return text;
    const size_t newline = text.rfind('\n');
    const size_t line = newline == kNone ? 0 : newline + 1;
    if (line == 0 && !line_starting_) return text;
    for (size_t i = line; i < text.size();) {
      const auto c = DecodeUtf8(text, i);
      if (!tokenizer::IsPythonSpace(c.value)) return text;
      i += static_cast<size_t>(c.bytes);
    }
    return text.substr(0, line);
  }

  void AddText(std::string_view text) {
    if (!text.empty()) Add(TokenKind::kText, std::string(text));
  }

  void Add(TokenKind kind, std::string value) {
    tokens_.push_back({kind, std::move(value), line_});
  }

  // Moves to `to`, counting lines.
  void Advance(size_t to) {
    for (; at_ < to; ++at_) {
      if (source_[at_] == '\n') ++line_;
    }
  }

  void SkipSpaces() {
    while (at_ < source_.size()) {
      const auto c = DecodeUtf8(source_, at_);
      if (!tokenizer::IsPythonSpace(c.value)) return;
      Advance(at_ + static_cast<size_t>(c.bytes));
    }
  }

  // After the end of a tag: '-' eats white space, a plain end of a statement one newline.
  void AfterTag(char sign, bool trims_newline) {
    const size_t from = at_;
    if (sign == '-') {
      SkipSpaces();
    } else if (trims_newline && sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      Advance(at_ + 1);
    }
    line_starting_ = at_ > from && source_[at_ - 1] == '\n';
  }

  absl::Status SkipComment() {
    const int line = line_;
    const size_t end = source_.find("#}", at_);
    if (end == kNone) return SyntaxError("Missing end of comment tag", line);
    const char sign =
        end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? source_[end - 1] : ' ';
    Advance(end + 2);
    AfterTag(sign, true);
    return absl::OkStatus();
  }

  // Whether `word` and the end of the tag come next; moves past them if so.
  bool SkipWord(std::string_view word) {
    size_t at = at_;
    const auto skip = [&] {
      while (at < source_.size() && tokenizer::IsPythonSpace(static_cast<uint8_t>(source_[at])))
        ++at;
    };
    skip();
    if (!source_.substr(at).starts_with(word)) return false;
    at += word.size();
    skip();
    const bool minus = at < source_.size() && source_[at] == '-';
    if (!source_.substr(at + (minus ? 1 : 0)).starts_with("%}")) return false;
    Advance(at + (minus ? 3 : 2));
    AfterTag(minus ? '-' : ' ', false);
    return true;
  }

  absl::Status Raw() {
    const int line = line_;
    for (size_t begin = source_.find("{%", at_); begin != kNone;
         begin = source_.find("{%", begin + 2)) {
      size_t at = begin + 2;
      const char sign =
          at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : ' ';
      at += sign == ' ' ? 0 : 1;
      const auto skip = [&] {
        while (at < source_.size() && tokenizer::IsPythonSpace(static_cast<uint8_t>(source_[at])))
          ++at;
      };
      skip();
      if (!source_.substr(at).starts_with("endraw")) continue;
      at += 6;
      skip();
      const char end_sign =
          at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : ' ';
      at += end_sign == ' ' ? 0 : 1;
      if (!source_.substr(at).starts_with("%}")) continue;
      AddText(Trimmed(source_.substr(at_, begin - at_), sign, false));
      Advance(at + 2);
      AfterTag(end_sign, true);
      return absl::OkStatus();
    }
    return SyntaxError("Missing end of raw directive", line);
  }

  // The tokens of an expression or statement, up to the end of its tag.
  absl::Status Inside(bool is_print) {
    std::string brackets;  // what is open
    const std::string_view end = is_print ? "}}" : "%}";
    while (true) {
      SkipSpaces();
      if (at_ >= source_.size()) return absl::OkStatus();  // the parser misses the end
      const std::string_view rest = source_.substr(at_);
      const bool signed_end =
          (rest[0] == '-' || (rest[0] == '+' && !is_print)) && rest.substr(1).starts_with(end);
      if (brackets.empty() && (signed_end || rest.starts_with(end))) {
        Add(is_print ? TokenKind::kPrintEnd : TokenKind::kStatementEnd, "");
        Advance(at_ + end.size() + (signed_end ? 1 : 0));
        AfterTag(signed_end ? rest[0] : ' ', !is_print);
        return absl::OkStatus();
      }
      TANDEM_RETURN_IF_ERROR(NextToken(&brackets));
    }
  }

  absl::Status NextToken(std::string* brackets) {
    const char c = source_[at_];
    if (c == '\'' || c == '"') return String(c);
    if (c >= '0' && c <= '9') return Number();
    const auto first = DecodeUtf8(source_, at_);
    if (IsNameStart(first.value)) {
      Name();
      return absl::OkStatus();
    }
    constexpr std::array<std::string_view, 7> kPairs = {"**", "//", "==", "!=", ">=", "<=", "%}"};
    for (const std::string_view pair : kPairs) {
      if (source_.substr(at_).starts_with(pair) && pair != "%}") return Operator(2);
    }
    constexpr std::string_view kSingles = "+-/*%~[](){}<>=.:|,;";
    if (kSingles.find(c) == kNone) {
      return SyntaxError(
          StrCat("unexpected char '", source_.substr(at_, static_cast<size_t>(first.bytes)), "'"),
          line_);
    }
    if (c == '(' || c == '[' || c == '{')
      brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (brackets->empty())
        return SyntaxError(StrCat("unexpected '", std::string(1, c), "'"), line_);
      if (brackets->back() != c) {
        return SyntaxError(StrCat("unexpected '", std::string(1, c), "', expected '",
                                  std::string(1, brackets->back()), "'"),
                           line_);
      }
      brackets->pop_back();
    }
    return Operator(1);
  }

  absl::Status Operator(size_t length) {
    Add(TokenKind::kOperator, std::string(source_.substr(at_, length)));
    at_ += length;
    return absl::OkStatus();
  }

  void Name() {
    const size_t begin = at_;
    while (at_ < source_.size()) {
      const auto c = DecodeUtf8(source_, at_);
      if (!IsNameStart(c.value) && !tokenizer::IsWordCharacter(c.value)) break;
      at_ += static_cast<size_t>(c.bytes);
    }
    Add(TokenKind::kName, std::string(source_.substr(begin, at_ - begin)));
  }

  absl::Status Number() {
    const auto digits = [&](size_t at, auto is_digit, std::string* out) {
      while (at < source_.size() &&
             (is_digit(source_[at]) ||
              (source_[at] == '_' && at + 1 < source_.size() && is_digit(source_[at + 1])))) {
        if (source_[at] != '_') out->push_back(source_[at]);
        ++at;
      }
      return at;
    };
    const auto decimal = [](char c) { return c >= '0' && c <= '9'; };
    const auto hexadecimal = [&](char c) {
      return decimal(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    };
    std::string text;
    if (source_[at_] == '0' && at_ + 1 < source_.size()) {
      const char base = static_cast<char>(source_[at_ + 1] | 0x20);
      if (base == 'x' || base == 'o' || base == 'b') {
        text = std::string("0") + base;
        at_ = digits(at_ + 2, hexadecimal, &text);
        Add(TokenKind::kInteger, text);
        return absl::OkStatus();
      }
    }
    at_ = digits(at_, decimal, &text);
    bool is_float = false;
    if (at_ + 1 < source_.size() && source_[at_] == '.' && decimal(source_[at_ + 1])) {
      is_float = true;
      text.push_back('.');
      at_ = digits(at_ + 1, decimal, &text);
    }
    if (at_ < source_.size() && (source_[at_] | 0x20) == 'e') {
      const bool has_sign =
          at_ + 1 < source_.size() && (source_[at_ + 1] == '+' || source_[at_ + 1] == '-');
      const size_t first = at_ + (has_sign ? 2 : 1);
      if (first < source_.size() && decimal(source_[first])) {
        is_float = true;
        text.append(has_sign ? source_.substr(at_, 2) : "e");
        at_ = digits(first, decimal, &text);
      }
    }
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, text);
    return absl::OkStatus();
  }

  absl::Status String(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) {
      end += source_[end] == '\\' ? 2 : 1;
    }
    if (end >= source_.size()) {
      return SyntaxError(StrCat("unexpected char '", std::string(1, quote), "' at ", at_), line_);
    }
    std::string value;
    TANDEM_RETURN_IF_ERROR(Unescape(source_.substr(at_ + 1, end - at_ - 1), &value));
    Add(TokenKind::kString, std::move(value));
    Advance(end + 1);
    return absl::OkStatus();
  }

  // Python's escapes; an unknown one stays as it is.
  absl::Status Unescape(std::string_view raw, std::string* out) const {
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 >= raw.size()) {
        out->push_back(raw[i]);
        continue;
      }
      const char c = raw[++i];
      constexpr std::string_view kNames = "ntrabfv\\'\"";
      constexpr std::string_view kValues = "\n\t\r\a\b\f\v\\'\"";
      if (const size_t known = kNames.find(c); known != kNone) {
        out->push_back(kValues[known]);
      } else if (c == '\n') {
        continue;
      } else if (c >= '0' && c <= '7') {
        size_t length = 1;
        while (length < 3 && i + length < raw.size() && raw[i + length] >= '0' &&
               raw[i + length] <= '7')
          ++length;
        AppendCodePoint(raw.substr(i, length), 8, out);
        i += length - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t length = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (!AppendCodePoint(raw.substr(i + 1, length), 16, out) || raw.size() < i + 1 + length) {
          return SyntaxError("bad escape in a string", line_);
        }
        i += length;
      } else {
        out->push_back('\\');
        out->push_back(c);
      }
    }
    return absl::OkStatus();
  }

  static bool AppendCodePoint(std::string_view digits, int base, std::string* out) {
    uint32_t value = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    const bool good = parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size() &&
                      value < 0x110000 && (value < 0xD800 || value > 0xDFFF);
    if (good) tokenizer::AppendUtf8(value, out);
    return good;
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source) {
  if (tokenizer::FindInvalidUtf8(source)) {
    return SyntaxError("the template is not valid UTF-8", 1);
  }
  const std::string normalized = NormalizeNewlines(source);
  return Lexer(normalized).Run();
}

}  // namespace tandem::chat_template
