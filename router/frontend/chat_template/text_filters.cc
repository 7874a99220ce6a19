#include <algorithm>
#include <map>
#include <utility>

#include "common/base/strings.h"
#include "common/tokenizer/unicode.h"
#include "router/frontend/chat_template/library.h"
#include "router/frontend/chat_template/python_text.h"
#include "router/frontend/chat_template/text_operations.h"

namespace tandem::chat_template {
namespace {

constexpr size_t kMaxTextBytes = 64u << 20;

bool Flag(const Arguments& arguments, size_t index, std::string_view name, bool otherwise) {
  const Value* value = arguments.Find(index, name);
  return value != nullptr ? value->Truthy() : otherwise;
}

// An argument as an integer of sane size; nothing, with an error, when it is none.
std::optional<int64_t> IntegerArgument(Interpreter& self, const Arguments& arguments, size_t index,
                                       std::string_view name, int64_t otherwise) {
  const Value* value = arguments.Find(index, name);
  if (value == nullptr || value->is_none()) return otherwise;
  if (!value->is_integral()) {
    self.FailType(base::StrCat("TypeError: ", name, " is no integer"));
    return std::nullopt;
  }
  constexpr Integer kFar = 1 << 30;
  return static_cast<int64_t>(std::clamp(value->integer(), -kFar, kFar));
}

template <TaintedText (*Operation)(const TaintedText&)>
Value Mapped(Interpreter& self, const Value& input, const Arguments& arguments) {
  return self.MakeString(Operation(self.ToText(input)));
}

Value Trim(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* chars = arguments.Find(0, "chars");
  std::optional<std::string> set;
  if (chars != nullptr && !chars->is_none()) set = self.ToText(*chars).text();
  return self.MakeString(Strip(self.ToText(input), set, true, true));
}

// Words start after white space, '-', and opening brackets.
Value TitleFilter(Interpreter& self, const Value& input, const Arguments& arguments) {
  const TaintedText text = self.ToText(input);
  TaintedText out;
  size_t begin = 0;
  const auto flush = [&](size_t end) {
    const TaintedText word = text.Part(begin, end);
    if (word.empty()) return;
    const auto first = static_cast<size_t>(tokenizer::DecodeUtf8(word.text(), 0).bytes);
    out.Append(Upper(word.Part(0, first)));
    out.Append(Lower(word.Part(first, word.size())));
  };
  for (size_t at = 0; at < text.size();) {
    const auto c = tokenizer::DecodeUtf8(text.text(), at);
    const size_t next = at + static_cast<size_t>(c.bytes);
    const bool separates = tokenizer::IsPythonSpace(c.value) ||
                           std::u32string_view(U"-({[<").find(c.value) != std::u32string_view::npos;
    if (separates) {
      flush(at);
      out.Append(text, at, next);
      begin = next;
    }
    at = next;
  }
  flush(text.size());
  return self.MakeString(std::move(out));
}

Value ReplaceFilter(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* old_text = arguments.Find(0, "old");
  const Value* new_text = arguments.Find(1, "new");
  if (old_text == nullptr || new_text == nullptr) {
    return self.FailType("TypeError: replace needs two arguments");
  }
  const auto count = IntegerArgument(self, arguments, 2, "count", -1);
  if (!count) return Value();
  auto text = Replace(self.ToText(input), self.ToText(*old_text).text(), self.ToText(*new_text),
                      *count, kMaxTextBytes);
  if (!text) return self.Fail(ErrorKind::kOther, "a text that is too long");
  return self.MakeString(*std::move(text));
}

template <bool kAlways>
Value Escape(Interpreter& self, const Value& input, const Arguments& arguments) {
  TaintedText text = self.ToText(input);
  if (kAlways) {
    TaintedText plain;
    plain.Append(text);
    text = std::move(plain);
  }
  return self.MakeString(Escaped(text));
}

Value Indent(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* width = arguments.Find(0, "width");
  TaintedText indention(std::string(4, ' '), true);
  if (width != nullptr && width->is_string()) {
    indention = width->string();
  } else {
    const auto count = IntegerArgument(self, arguments, 0, "width", 4);
    if (!count) return Value();
    if (*count > 4096) return self.Fail(ErrorKind::kOther, "an indent that is too wide");
    indention =
        TaintedText(std::string(static_cast<size_t>(std::max<int64_t>(*count, 0)), ' '), true);
  }
  const bool first = Flag(arguments, 1, "first", false);
  const bool blank = Flag(arguments, 2, "blank", false);
  TaintedText text = self.ToText(input);
  text.Append("\n", true);
  const std::vector<TaintedText> lines = SplitLines(text, false);
  if (!self.Charge(lines.size() * indention.size())) return Value();
  TaintedText out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.Append("\n", true);
    const bool indents = i == 0 ? first : (blank || !lines[i].empty());
    if (indents) out.Append(indention);
    out.Append(lines[i]);
  }
  return self.MakeString(std::move(out));
}

Value Truncate(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto length = IntegerArgument(self, arguments, 0, "length", 255);
  const bool kill_words = Flag(arguments, 1, "killwords", false);
  const Value* given_end = arguments.Find(2, "end");
  const auto leeway = IntegerArgument(self, arguments, 3, "leeway", 5);
  if (!length || !leeway) return Value();
  const TaintedText end = given_end != nullptr ? self.ToText(*given_end) : TaintedText("...", true);
  const TaintedText text = self.ToText(input);
  if (CountCodePoints(text.text()) <= *length + *leeway) return self.MakeString(text);
  const int64_t kept = *length - CountCodePoints(end.text());
  if (kept < 0) return self.FailType("AssertionError: length is too short");
  Value cut = self.Slice(Value::Of(text), Value::None(), Value::Of(kept), Value::None());
  if (self.failed()) return Value();
  TaintedText out = cut.string();
  if (!kill_words) {
    const size_t space = out.text().rfind(' ');
    if (space != std::string::npos) out = out.Part(0, space);
  }
  out.Append(end);
  return self.MakeString(std::move(out));
}

Value WordCount(Interpreter& self, const Value& input, const Arguments& arguments) {
  const std::u32string text = tokenizer::ToUtf32(self.ToText(input).text());
  int64_t count = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (tokenizer::IsWordCharacter(text[i]) &&
        (i == 0 || !tokenizer::IsWordCharacter(text[i - 1]))) {
      ++count;
    }
  }
  return Value::Of(count);
}

Value Center(Interpreter& self, const Value& input, const Arguments& arguments) {
  const auto width = IntegerArgument(self, arguments, 0, "width", 80);
  if (!width) return Value();
  const TaintedText text = self.ToText(input);
  const int64_t missing = *width - CountCodePoints(text.text());
  if (missing <= 0) return self.MakeString(text);
  if (!self.Charge(static_cast<size_t>(missing))) return Value();
  // As in CPython: of an odd rest the left side gets more when the width is odd.
  const int64_t left = missing / 2 + (missing & *width & 1);
  TaintedText out(std::string(static_cast<size_t>(left), ' '), true);
  out.Append(text);
  out.Append(std::string(static_cast<size_t>(missing - left), ' '), true);
  return self.MakeString(std::move(out));
}

Value Format(Interpreter& self, const Value& input, const Arguments& arguments) {
  return FormatPercent(self, self.ToText(input), arguments.positional);
}

Value UrlEncode(Interpreter& self, const Value& input, const Arguments& arguments) {
  const TaintedText text = self.ToText(input);
  TaintedText out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text.text()[i]);
    const bool plain = (c >= '0' && c <= '9') || ((c | 0x20u) >= 'a' && (c | 0x20u) <= 'z') ||
                       c == '_' || c == '.' || c == '-' || c == '~' || c == '/';
    if (plain) {
      out.Append(text, i, i + 1);
    } else {
      constexpr char kDigits[] = "0123456789ABCDEF";
      const char escaped[] = {'%', kDigits[c / 16], kDigits[c % 16]};
      out.Append(std::string_view(escaped, 3), text.TrustedAt(i));
    }
  }
  return self.MakeString(std::move(out));
}

}  // namespace

Filter FindTextFilter(std::string_view name) {
  static const auto& filters =
      *new std::map<std::string_view, Filter>{{"capitalize", Mapped<Capitalize>},
                                              {"center", Center},
                                              {"e", Escape<false>},
                                              {"escape", Escape<false>},
                                              {"forceescape", Escape<true>},
                                              {"format", Format},
                                              {"indent", Indent},
                                              {"lower", Mapped<Lower>},
                                              {"replace", ReplaceFilter},
                                              {"title", TitleFilter},
                                              {"trim", Trim},
                                              {"truncate", Truncate},
                                              {"upper", Mapped<Upper>},
                                              {"urlencode", UrlEncode},
                                              {"wordcount", WordCount}};
  const auto it = filters.find(name);
  return it == filters.end() ? nullptr : it->second;
}

}  // namespace tandem::chat_template
