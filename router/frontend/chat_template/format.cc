// str.format and the % operator.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/python_text.h"
#include "router/frontend/chat_template/text_operations.h"

namespace tandem::chat_template {
namespace {

using Kind = Value::Kind;

constexpr int kMaxWidth = 4096;

// What a conversion asks for, in both forms.
struct Spec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '='; 0: by type
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  char grouping = 0;
  int width = 0;
  int precision = -1;
  char type = 0;
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Digits at `*at` as a number; false when it is too large.
bool ReadNumber(std::string_view text, size_t* at, int* number) {
  *number = 0;
  for (; *at < text.size() && IsDigit(text[*at]); ++*at) {
    *number = *number * 10 + (text[*at] - '0');
    if (*number > kMaxWidth) return false;
  }
  return true;
}

TaintedText Padded(const TaintedText& text, const Spec& spec, char align) {
  const int64_t missing = spec.width - CountCodePoints(text.text());
  if (missing <= 0) return text;
  const int64_t left = align == '<' ? 0 : align == '^' ? missing / 2 : missing;
  TaintedText out;
  size_t sign = 0;
  if (align == '=' && !text.empty() && (text.text()[0] == '-' || text.text()[0] == '+')) sign = 1;
  out.Append(text, 0, sign);
  for (int64_t i = 0; i < left; ++i) out.Append(spec.fill, true);
  out.Append(text, sign, text.size());
  for (int64_t i = left; i < missing; ++i) out.Append(spec.fill, true);
  return out;
}

std::string Grouped(const std::string& digits, char separator, size_t every) {
  if (separator == 0) return digits;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) out.push_back(separator);
    out.push_back(digits[i]);
  }
  return out;
}

std::string WithSign(const std::string& magnitude, bool negative, char sign) {
  if (negative) return std::string("-").append(magnitude);
  return sign == '-' ? magnitude : std::string(1, sign).append(magnitude);
}

std::string FormatInteger(Integer value, const Spec& spec) {
  const bool negative = value < 0;
  auto rest = static_cast<unsigned __int128>(value);
  if (negative) rest = -rest;
  const char type = static_cast<char>(spec.type | 0x20);
  const unsigned base = type == 'x' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
  std::string digits;
  do {
    digits.push_back("0123456789abcdef"[static_cast<size_t>(rest % base)]);
    rest /= base;
  } while (rest > 0);
  std::reverse(digits.begin(), digits.end());
  if (spec.type == 'X') {
    for (char& c : digits) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  digits = Grouped(digits, spec.grouping, base == 10 ? 3 : 4);
  if (spec.alternate && base != 10) digits = std::string{'0', spec.type}.append(digits);
  return WithSign(digits, negative, spec.sign);
}

std::string FormatFloat(double value, const Spec& spec) {
  const bool negative = std::signbit(value);
  const double magnitude = std::fabs(value) * (spec.type == '%' ? 100 : 1);
  std::string digits;
  if (spec.type == 0 && spec.precision < 0) {
    digits = FloatText(magnitude);
  } else {
    const char type = spec.type == '%' ? 'f' : spec.type == 0 || spec.type == 'n' ? 'g' : spec.type;
    const char format[] = {'%', '.', '*', type, 0};
    char buffer[kMaxWidth + 512];
    std::snprintf(buffer, sizeof(buffer), format, spec.precision < 0 ? 6 : spec.precision,
                  magnitude);
    digits = buffer;
  }
  if (spec.grouping != 0 && std::isfinite(value)) {
    const size_t whole = std::min(digits.find_first_not_of("0123456789"), digits.size());
    digits = Grouped(digits.substr(0, whole), spec.grouping, 3).append(digits.substr(whole));
  }
  if (spec.type == '%') digits.push_back('%');
  return WithSign(digits, negative, spec.sign);
}

bool IsIntegerType(char type) {
  return type == 0 || type == 'd' || type == 'n' || type == 'x' || type == 'X' || type == 'o' ||
         type == 'b';
}

bool IsFloatType(char type) {
  return type == 0 || type == 'f' || type == 'F' || type == 'e' || type == 'E' || type == 'g' ||
         type == 'G' || type == '%' || type == 'n';
}

// format(value, spec).
std::optional<TaintedText> FormatValue(Interpreter& interpreter, const Value& value, Spec spec) {
  if (spec.zero && spec.align == 0) {
    spec.fill.assign(1, '0');
    spec.align = '=';
  }
  if (value.is_string() || (!value.is_number() && spec.type == 0) ||
      (value.is(Kind::kBool) && spec.type == 0)) {
    TaintedText text = interpreter.ToText(value);
    if (spec.type != 0 && spec.type != 's') {
      interpreter.FailType(base::StrCat("ValueError: Unknown format code '",
                                        std::string(1, spec.type), "' for object of type 'str'"));
      return std::nullopt;
    }
    if (spec.precision >= 0 && CountCodePoints(text.text()) > spec.precision) {
      text = interpreter
                 .Slice(Value::Of(text), Value::None(), Value::Of(spec.precision), Value::None())
                 .string();
    }
    return Padded(text, spec, spec.align == 0 || spec.align == '=' ? '<' : spec.align);
  }
  const char align = spec.align == 0 ? '>' : spec.align;
  if (value.is_integral() && IsIntegerType(spec.type)) {
    return Padded(TaintedText(FormatInteger(value.integer(), spec), true), spec, align);
  }
  if (value.is_number() && IsFloatType(spec.type)) {
    return Padded(TaintedText(FormatFloat(value.number(), spec), true), spec, align);
  }
  interpreter.FailType(base::StrCat("ValueError: Unknown format code '", std::string(1, spec.type),
                                    "' for object of type '", value.TypeName(), "'"));
  return std::nullopt;
}

// [[fill]align][sign][#][0][width][grouping][.precision][type]
bool ReadSpec(std::string_view text, Spec* spec) {
  const auto is_align = [](char c) { return c == '<' || c == '>' || c == '^' || c == '='; };
  size_t at = 0;
  size_t fill = 0;  // bytes of the fill character
  while (fill < text.size() && (fill == 0 || (static_cast<uint8_t>(text[fill]) & 0xC0u) == 0x80u)) {
    ++fill;
  }
  if (fill > 0 && fill < text.size() && is_align(text[fill])) {
    spec->fill = std::string(text.substr(0, fill));
    spec->align = text[fill];
    at = fill + 1;
  } else if (!text.empty() && is_align(text[0])) {
    spec->align = text[0];
    at = 1;
  }
  const auto take = [&](std::string_view any) {
    if (at >= text.size() || any.find(text[at]) == std::string_view::npos) return '\0';
    return text[at++];
  };
  if (const char sign = take("+- ")) spec->sign = sign;
  spec->alternate = take("#") != 0;
  spec->zero = take("0") != 0;
  if (!ReadNumber(text, &at, &spec->width)) return false;
  spec->grouping = take(",_");
  if (take(".") != 0) {
    if (at >= text.size() || !IsDigit(text[at])) return false;
    if (!ReadNumber(text, &at, &spec->precision)) return false;
  }
  if (at < text.size()) spec->type = text[at++];
  return at == text.size();
}

class BraceFormatter {
 public:
  BraceFormatter(Interpreter* interpreter, const TaintedText& format, const Arguments& arguments)
      : interpreter_(interpreter), format_(format), arguments_(arguments) {}

  Value Run() {
    const std::string& text = format_.text();
    size_t at = 0;
    while (at < text.size() && !interpreter_->failed()) {
      const size_t brace = text.find_first_of("{}", at);
      out_.Append(format_, at, std::min(brace, text.size()));
      if (brace == std::string::npos) break;
      if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
        out_.Append(format_, brace, brace + 1);
        at = brace + 2;
        continue;
      }
      if (text[brace] == '}') {
        return interpreter_->FailType("ValueError: Single '}' encountered in format string");
      }
      const size_t end = text.find('}', brace);
      if (end == std::string::npos) {
        return interpreter_->FailType("ValueError: expected '}' before end of string");
      }
      Field(std::string_view(text).substr(brace + 1, end - brace - 1));
      at = end + 1;
    }
    return interpreter_->failed() ? Value() : interpreter_->MakeString(std::move(out_));
  }

 private:
  void Field(std::string_view field) {
    if (field.find('{') != std::string_view::npos) {
      interpreter_->Fail(ErrorKind::kOther, "a format field inside a format field");
      return;
    }
    const size_t colon = field.find(':');
    std::string_view name = field.substr(0, colon);
    char conversion = 0;
    if (name.size() >= 2 && name[name.size() - 2] == '!') {
      conversion = name.back();
      name.remove_suffix(2);
    }
    Value value = Resolve(name);
    if (interpreter_->failed()) return;
    if (conversion == 'r') value = Value::Of(interpreter_->ToRepr(value));
    if (conversion == 's') value = Value::Of(interpreter_->ToText(value));
    Spec spec;
    if (colon != std::string_view::npos && !ReadSpec(field.substr(colon + 1), &spec)) {
      interpreter_->FailType("ValueError: Invalid format specifier");
      return;
    }
    const auto text = FormatValue(*interpreter_, value, spec);
    if (text && interpreter_->Charge(text->size())) out_.Append(*text);
  }

  Value Resolve(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = Base(name.substr(0, end));
    std::string_view rest = name.substr(end);
    while (!rest.empty() && !interpreter_->failed()) {
      if (rest[0] == '.') {
        const size_t stop = std::min(rest.find_first_of(".[", 1), rest.size());
        value = interpreter_->Attribute(value, std::string(rest.substr(1, stop - 1)));
        rest.remove_prefix(stop);
        continue;
      }
      const size_t close = rest.find(']');
      if (rest[0] != '[' || close == std::string_view::npos) {
        return interpreter_->FailType("ValueError: Missing ']' in format string");
      }
      const std::string key(rest.substr(1, close - 1));
      int index = 0;
      size_t at = 0;
      const bool is_index = !key.empty() && ReadNumber(key, &at, &index) && at == key.size();
      value = interpreter_->Subscript(value, is_index ? Value::Of(index) : Value::Trusted(key));
      rest.remove_prefix(close + 1);
    }
    return value;
  }

  Value Base(std::string_view name) {
    int index = 0;
    size_t at = 0;
    if (name.empty()) {
      index = next_++;
    } else if (!ReadNumber(name, &at, &index) || at != name.size()) {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      return interpreter_->FailType(base::StrCat("KeyError: '", name, "'"));
    }
    if (static_cast<size_t>(index) >= arguments_.positional.size()) {
      return interpreter_->FailType(base::StrCat("IndexError: Replacement index ", index,
                                                 " out of range for positional args tuple"));
    }
    return arguments_.positional[static_cast<size_t>(index)];
  }

  Interpreter* interpreter_;
  const TaintedText& format_;
  const Arguments& arguments_;
  TaintedText out_;
  int next_ = 0;
};

class PercentFormatter {
 public:
  PercentFormatter(Interpreter* interpreter, const TaintedText& format,
                   const std::vector<Value>& arguments)
      : interpreter_(interpreter), format_(format), arguments_(arguments) {}

  Value Run() {
    const std::string& text = format_.text();
    size_t at = 0;
    while (at < text.size()) {
      const size_t percent = std::min(text.find('%', at), text.size());
      out_.Append(format_, at, percent);
      at = percent;
      if (at < text.size() && !Conversion(&at)) return Value();
    }
    const bool mapping = arguments_.size() == 1 && arguments_[0].is(Kind::kDict);
    if (next_ < arguments_.size() && !mapping) {
      return interpreter_->FailType(
          "TypeError: not all arguments converted during string formatting");
    }
    return interpreter_->MakeString(std::move(out_));
  }

 private:
  // One conversion from its '%' on; false after an error.
  bool Conversion(size_t* at) {
    const std::string& text = format_.text();
    ++*at;
    std::optional<Value> named;
    if (*at < text.size() && text[*at] == '(') {
      const size_t close = text.find(')', *at);
      if (close == std::string::npos || arguments_.size() != 1) return Incomplete();
      named = interpreter_->Subscript(arguments_[0],
                                      Value::Trusted(text.substr(*at + 1, close - *at - 1)));
      *at = close + 1;
    }
    Spec spec;
    for (; *at < text.size() && std::string_view("-+ 0#").find(text[*at]) != std::string::npos;
         ++*at) {
      if (text[*at] == '-') spec.align = '<';
      if (text[*at] == '+' || text[*at] == ' ') spec.sign = text[*at];
      if (text[*at] == '0') spec.zero = true;
      if (text[*at] == '#') spec.alternate = true;
    }
    if (!ReadNumber(text, at, &spec.width)) return Incomplete();
    if (*at < text.size() && text[*at] == '.') {
      ++*at;
      if (!ReadNumber(text, at, &spec.precision)) return Incomplete();
    }
    if (*at >= text.size()) return Incomplete();
    const char type = text[(*at)++];
    if (type == '%') {
      out_.Append("%", true);
      return true;
    }
    if (!named && next_ >= arguments_.size()) {
      interpreter_->FailType("TypeError: not enough arguments for format string");
      return false;
    }
    return Convert(named ? *named : arguments_[next_++], type, spec);
  }

  bool Convert(const Value& value, char type, Spec spec) {
    Value converted = value;
    if (type == 's' || type == 'r' || type == 'a') {
      converted =
          Value::Of(type == 's' ? interpreter_->ToText(value) : interpreter_->ToRepr(value));
      spec.zero = false;
      if (spec.align == 0) spec.align = '>';
    } else if (type == 'd' || type == 'i' || type == 'u' || type == 'x' || type == 'X' ||
               type == 'o') {
      if (!value.is_number() || (!value.is_integral() && type != 'd' && type != 'i')) {
        interpreter_->FailType(base::StrCat("TypeError: %", std::string(1, type),
                                            " format: a number is required, not ",
                                            value.TypeName()));
        return false;
      }
      spec.type = type == 'i' || type == 'u' ? 'd' : type;
      converted = value.is_integral()
                      ? value
                      : Value::Of(static_cast<int64_t>(std::clamp(value.number(), -9e18, 9e18)));
    } else if (IsFloatType(type)) {
      if (!value.is_number()) {
        interpreter_->FailType(
            base::StrCat("TypeError: must be real number, not ", value.TypeName()));
        return false;
      }
      spec.type = type;
      converted = Value::Of(value.number());
    } else {
      interpreter_->FailType(
          base::StrCat("ValueError: unsupported format character '", std::string(1, type), "'"));
      return false;
    }
    const auto text = FormatValue(*interpreter_, converted, spec);
    if (!text || !interpreter_->Charge(text->size())) return false;
    out_.Append(*text);
    return true;
  }

  bool Incomplete() {
    interpreter_->FailType("ValueError: incomplete format");
    return false;
  }

  Interpreter* interpreter_;
  const TaintedText& format_;
  const std::vector<Value>& arguments_;
  TaintedText out_;
  size_t next_ = 0;
};

}  // namespace

Value FormatBraces(Interpreter& interpreter, const TaintedText& format,
                   const Arguments& arguments) {
  return BraceFormatter(&interpreter, format, arguments).Run();
}

Value FormatPercent(Interpreter& interpreter, const TaintedText& format,
                    const std::vector<Value>& arguments) {
  return PercentFormatter(&interpreter, format, arguments).Run();
}

}  // namespace tandem::chat_template
