#include "router/frontend/chat_template/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/time/time.h"
#include "common/base/strings.h"
#include "common/tokenizer/unicode.h"

namespace tandem::chat_template {
namespace {

using Kind = Value::Kind;

std::string Hex(char32_t value, size_t digits) {
  std::string out(digits, '0');
  for (size_t i = digits; i > 0; --i, value >>= 4) out[i - 1] = "0123456789abcdef"[value & 15u];
  return out;
}

std::string EscapedForRepr(char32_t c, char32_t quote) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (c == '\\') return "\\\\";
  if (c == quote) return std::string("\\") + static_cast<char>(c);
  if (tokenizer::IsPythonPrintable(c)) return "";
  if (c < 0x100) return base::StrCat("\\x", Hex(c, 2));
  return c < 0x10000 ? base::StrCat("\\u", Hex(c, 4)) : base::StrCat("\\U", Hex(c, 8));
}

// One level of a JSON text being written.
class JsonWriter {
 public:
  JsonWriter(Interpreter* interpreter, const JsonFormat& format)
      : interpreter_(interpreter), format_(format) {}

  bool Write(const Value& value, size_t level) {
    if (!interpreter_->Charge(1)) return false;
    if (!CheckSize()) return false;
    switch (value.kind()) {
      case Kind::kNone:
        return Literal("null");
      case Kind::kBool:
        return Literal(value.boolean() ? "true" : "false");
      case Kind::kInteger:
        return Literal(IntegerText(value.integer()));
      case Kind::kFloat:
        return Literal(Number(value.number()));
      case Kind::kString:
        return String(value.string());
      case Kind::kList:
        return List(value.list(), level);
      case Kind::kDict:
        return Object(value.dict(), level);
      default:
        interpreter_->FailType(base::StrCat("TypeError: Object of type ", value.TypeName(),
                                            " is not JSON serializable"));
        return false;
    }
  }

  TaintedText Take() { return std::move(out_); }

 private:
  bool CheckSize() {
    if (out_.size() - charged_ < 4096) return true;
    const size_t grown = out_.size() - std::exchange(charged_, out_.size());
    return interpreter_->Charge(grown);
  }

  bool Literal(std::string_view text) {
    out_.Append(text, true);
    return true;
  }

  static std::string Number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return FloatText(value);
  }

  bool String(const TaintedText& text) {
    Literal("\"");
    size_t done = 0;
    const std::string& bytes = text.text();
    for (size_t at = 0; at < bytes.size();) {
      const auto c = tokenizer::DecodeUtf8(bytes, at);
      const std::string escaped = Escaped(c.value);
      const size_t next = at + static_cast<size_t>(c.bytes);
      if (!escaped.empty()) {
        out_.Append(text, done, at);
        out_.Append(escaped, text.TrustedAt(at));
        done = next;
      }
      at = next;
    }
    out_.Append(text, done, bytes.size());
    return Literal("\"");
  }

  std::string Escaped(char32_t c) const {
    switch (c) {
      case '"':
        return "\\\"";
      case '\\':
        return "\\\\";
      case '\n':
        return "\\n";
      case '\r':
        return "\\r";
      case '\t':
        return "\\t";
      case '\f':
        return "\\f";
      case '\b':
        return "\\b";
      default:
        break;
    }
    if (c >= 0x20 && (c < 0x7F || !format_.ensure_ascii)) return "";
    if (c < 0x10000) return c == 0x7F ? "" : base::StrCat("\\u", Hex(c, 4));
    const char32_t rest = c - 0x10000;
    return base::StrCat("\\u", Hex(0xD800 + (rest >> 10), 4), "\\u",
                        Hex(0xDC00 + (rest & 0x3FF), 4));
  }

  void NewLine(size_t level) {
    if (!format_.indent) return;
    Literal("\n");
    for (size_t i = 0; i < level; ++i) Literal(*format_.indent);
  }

  bool List(const chat_template::List& list, size_t level) {
    if (list.items.empty()) return Literal("[]");
    Literal("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) Literal(format_.item_separator);
      NewLine(level + 1);
      if (!Write(list.items[i], level + 1)) return false;
    }
    NewLine(level);
    return Literal("]");
  }

  bool Object(const Dict& dict, size_t level) {
    if (dict.size() == 0) return Literal("{}");
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [this](const auto* a, const auto* b) {
        return interpreter_->Less(a->first, b->first).value_or(false);
      });
      if (interpreter_->failed()) return false;
    }
    Literal("{");
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) Literal(format_.item_separator);
      NewLine(level + 1);
      if (!Key(entries[i]->first)) return false;
      Literal(format_.key_separator);
      if (!Write(entries[i]->second, level + 1)) return false;
    }
    NewLine(level);
    return Literal("}");
  }

  bool Key(const Value& key) {
    if (key.is_string()) return String(key.string());
    if (!key.is_number() && !key.is_none()) {
      interpreter_->FailType(base::StrCat("TypeError: keys must be str, int, float, bool or None, ",
                                          "not ", key.TypeName()));
      return false;
    }
    Literal("\"");
    return Write(key, 0) && Literal("\"");
  }

  Interpreter* interpreter_;
  const JsonFormat& format_;
  TaintedText out_;
  size_t charged_ = 0;
};

}  // namespace

std::string IntegerText(Integer value) {
  if (value == 0) return "0";
  const bool negative = value < 0;
  auto rest = static_cast<unsigned __int128>(value);
  if (negative) rest = -rest;
  std::string digits;
  for (; rest > 0; rest /= 10)
    digits.push_back(static_cast<char>('0' + static_cast<int>(rest % 10)));
  if (negative) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (value == 0) return std::signbit(value) ? "-0.0" : "0.0";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const char* digits_of_exponent = buffer + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(digits_of_exponent, end.ptr, exponent);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  std::string out = value < 0 ? "-" : "";
  const auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) base::StrAppend(&out, ".", digits.substr(1));
    const int magnitude = std::abs(exponent);
    base::StrAppend(&out, exponent < 0 ? "e-" : "e+", magnitude < 10 ? "0" : "", magnitude);
  } else if (exponent < 0) {
    base::StrAppend(&out, "0.", std::string(static_cast<size_t>(-exponent - 1), '0'), digits);
  } else if (count <= exponent + 1) {
    base::StrAppend(&out, digits, std::string(static_cast<size_t>(exponent + 1 - count), '0'),
                    ".0");
  } else {
    const auto point = static_cast<size_t>(exponent) + 1;
    base::StrAppend(&out, digits.substr(0, point), ".", digits.substr(point));
  }
  return out;
}

void AppendStringRepr(const TaintedText& text, TaintedText* out) {
  const std::string& bytes = text.text();
  const bool has_single = bytes.find('\'') != std::string::npos;
  const bool has_double = bytes.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out->Append(std::string_view(&quote, 1), true);
  for (size_t at = 0; at < bytes.size();) {
    const auto c = tokenizer::DecodeUtf8(bytes, at);
    const size_t next = at + static_cast<size_t>(c.bytes);
    const std::string escaped = EscapedForRepr(c.value, static_cast<char32_t>(quote));
    if (escaped.empty()) {
      out->Append(text, at, next);
    } else {
      out->Append(escaped, text.TrustedAt(at));
    }
    at = next;
  }
  out->Append(std::string_view(&quote, 1), true);
}

TaintedText Interpreter::ToText(const Value& value) {
  if (value.is_string()) return value.string();
  TaintedText out;
  if (value.is_undefined()) {
    return out;
  }
  AppendRepr(value, &out);
  return out;
}

TaintedText Interpreter::ToRepr(const Value& value) {
  TaintedText out;
  AppendRepr(value, &out);
  return out;
}

void Interpreter::AppendRepr(const Value& value, TaintedText* out) {
  if (!Charge(1)) return;
  if (out->size() > options_.limits.max_output_bytes) {
    Fail(ErrorKind::kOther, "a text that is too long");
    return;
  }
  switch (value.kind()) {
    case Kind::kUndefined:
      out->Append("Undefined", true);
      return;
    case Kind::kNone:
      out->Append("None", true);
      return;
    case Kind::kBool:
      out->Append(value.boolean() ? "True" : "False", true);
      return;
    case Kind::kInteger:
      out->Append(IntegerText(value.integer()), true);
      return;
    case Kind::kFloat:
      out->Append(FloatText(value.number()), true);
      return;
    case Kind::kString:
      if (Charge(value.string().size())) AppendStringRepr(value.string(), out);
      return;
    case Kind::kList: {
      const List& list = value.list();
      out->Append(list.tuple ? "(" : "[", true);
      for (size_t i = 0; i < list.items.size() && !failed(); ++i) {
        if (i > 0) out->Append(", ", true);
        AppendRepr(list.items[i], out);
      }
      out->Append(!list.tuple ? "]" : list.items.size() == 1 ? ",)" : ")", true);
      return;
    }
    case Kind::kDict: {
      out->Append("{", true);
      bool first = true;
      for (const auto& [key, item] : value.dict().entries()) {
        if (failed()) return;
        if (!std::exchange(first, false)) out->Append(", ", true);
        AppendRepr(key, out);
        out->Append(": ", true);
        AppendRepr(item, out);
      }
      out->Append("}", true);
      return;
    }
    case Kind::kRange: {
      const Range& range = value.range();
      out->Append(base::StrCat("range(", range.start, ", ", range.stop,
                               range.step == 1 ? "" : base::StrCat(", ", range.step), ")"),
                  true);
      return;
    }
    default:
      out->Append(base::StrCat("<", value.TypeName(), ">"), true);
      return;
  }
}

std::optional<TaintedText> ToJson(Interpreter& interpreter, const Value& value,
                                  const JsonFormat& format) {
  JsonWriter writer(&interpreter, format);
  if (!writer.Write(value, 0)) return std::nullopt;
  return writer.Take();
}

std::string FormatTime(int64_t unix_s, std::string_view format) {
  const absl::Time time = absl::FromUnixSeconds(unix_s);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 >= format.size()) {
      out.push_back(format[i]);
      continue;
    }
    // glibc's "%-d": without the leading zero.
    const bool bare = format[i + 1] == '-' && i + 2 < format.size();
    i += bare ? 2 : 1;
    std::string part;
    switch (format[i]) {
      case 'f':
        part = "000000";
        break;
      case 'x':
        part = absl::FormatTime("%m/%d/%y", time, absl::UTCTimeZone());
        break;
      case 'X':
        part = absl::FormatTime("%H:%M:%S", time, absl::UTCTimeZone());
        break;
      case 'z':
      case 'Z':  // a time without a zone
        break;
      case 's':
        part = base::StrCat(unix_s);
        break;
      case '%':
        part = "%";
        break;
      default:
        part = absl::FormatTime(std::string("%") + format[i], time, absl::UTCTimeZone());
    }
    const size_t digit = part.find_first_not_of(" 0");
    if (bare && !part.empty()) part = digit == std::string::npos ? "0" : part.substr(digit);
    out += part;
  }
  return out;
}

}  // namespace tandem::chat_template
