// Methods of str.
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

using Kind = Value::Kind;
using Method = Value (*)(Interpreter& interpreter, const TaintedText& self,
                         const Arguments& arguments);

constexpr size_t kMaxTextBytes = 64u << 20;

Value WrongArgument(Interpreter& interpreter, std::string_view wanted) {
  return interpreter.FailType(base::StrCat("TypeError: the method wants ", wanted));
}

template <TaintedText (*Operation)(const TaintedText&)>
Value Mapped(Interpreter& interpreter, const TaintedText& self, const Arguments&) {
  return interpreter.MakeString(Operation(self));
}

template <bool kLeft, bool kRight>
Value StripMethod(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  const Value* chars = arguments.Find(0, "chars");
  if (chars == nullptr || chars->is_none()) {
    return interpreter.MakeString(Strip(self, std::nullopt, kLeft, kRight));
  }
  if (!chars->is_string()) return WrongArgument(interpreter, "None or a string");
  if (!interpreter.Charge(self.size() * chars->string().size() / 8)) return Value();
  return interpreter.MakeString(Strip(self, chars->text(), kLeft, kRight));
}

Value ListOfTexts(Interpreter& interpreter, std::vector<TaintedText> parts) {
  std::vector<Value> items;
  for (TaintedText& part : parts) items.push_back(interpreter.MakeString(std::move(part)));
  return interpreter.MakeList(std::move(items));
}

template <bool kFromRight>
Value SplitMethod(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  const Value* given = arguments.Find(0, "sep");
  const Value* limit = arguments.Find(1, "maxsplit");
  std::optional<std::string> separator;
  if (given != nullptr && !given->is_none()) {
    if (!given->is_string()) return WrongArgument(interpreter, "None or a string");
    if (given->string().empty()) return interpreter.FailType("ValueError: empty separator");
    separator = given->text();
  }
  if (limit != nullptr && !limit->is_integral()) return WrongArgument(interpreter, "an integer");
  const int64_t max_splits =
      limit != nullptr
          ? static_cast<int64_t>(std::clamp(limit->integer(), Integer{-1}, Integer{1} << 40))
          : -1;
  if (!interpreter.Charge(self.size())) return Value();
  return ListOfTexts(interpreter, kFromRight ? SplitFromRight(self, separator, max_splits)
                                             : Split(self, separator, max_splits));
}

Value SplitLinesMethod(Interpreter& interpreter, const TaintedText& self,
                       const Arguments& arguments) {
  const Value* keep = arguments.Find(0, "keepends");
  if (!interpreter.Charge(self.size())) return Value();
  return ListOfTexts(interpreter, SplitLines(self, keep != nullptr && keep->Truthy()));
}

Value ReplaceMethod(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  const Value* old_text = arguments.Find(0, "old");
  const Value* new_text = arguments.Find(1, "new");
  const Value* count = arguments.Find(2, "count");
  if (old_text == nullptr || new_text == nullptr || !old_text->is_string() ||
      !new_text->is_string() || (count != nullptr && !count->is_integral())) {
    return WrongArgument(interpreter, "two strings and a count");
  }
  const int64_t times =
      count != nullptr
          ? static_cast<int64_t>(std::clamp(count->integer(), Integer{-1}, Integer{1} << 40))
          : -1;
  if (!interpreter.Charge(self.size())) return Value();
  auto text = Replace(self, old_text->text(), new_text->string(), times, kMaxTextBytes);
  if (!text) return interpreter.Fail(ErrorKind::kOther, "a text that is too long");
  return interpreter.MakeString(*std::move(text));
}

// The part between the optional arguments start and end, and how many characters lie before it.
struct Window {
  std::string text;
  int64_t first = 0;
};

std::optional<Window> WindowOf(Interpreter& interpreter, const TaintedText& self,
                               const Arguments& arguments) {
  if (arguments.positional.size() < 2) return Window{self.text(), 0};
  const Value end = arguments.positional.size() > 2 ? arguments.positional[2] : Value::None();
  const Value whole = Value::Of(self);
  const Value part = interpreter.Slice(whole, arguments.positional[1], end, Value::None());
  const Value before =
      interpreter.Slice(whole, Value::None(), arguments.positional[1], Value::None());
  if (interpreter.failed()) return std::nullopt;
  return Window{part.text(), CountCodePoints(before.text())};
}

// startswith and endswith take a string or a tuple of strings.
template <bool kStart>
Value HasEnd(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.empty()) return WrongArgument(interpreter, "a string");
  const auto window = WindowOf(interpreter, self, arguments);
  if (!window) return Value();
  const Value& wanted = arguments.positional[0];
  const auto has = [&](const Value& end) {
    return kStart ? window->text.starts_with(end.text()) : window->text.ends_with(end.text());
  };
  if (wanted.is_string()) return Value::Of(has(wanted));
  if (!wanted.is_tuple()) return WrongArgument(interpreter, "a string or a tuple of strings");
  for (const Value& one : wanted.list().items) {
    if (!one.is_string()) return WrongArgument(interpreter, "a tuple of strings");
    if (has(one)) return Value::Of(true);
  }
  return Value::Of(false);
}

template <bool kLast, bool kMustBe>
Value Find(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.positional[0].is_string()) {
    return WrongArgument(interpreter, "a string");
  }
  const auto window = WindowOf(interpreter, self, arguments);
  if (!window || !interpreter.Charge(self.size())) return Value();
  const std::string& wanted = arguments.positional[0].text();
  const size_t at = kLast ? window->text.rfind(wanted) : window->text.find(wanted);
  if (at == std::string::npos) {
    return kMustBe ? interpreter.FailType("ValueError: substring not found") : Value::Of(-1);
  }
  return Value::Of(window->first + CountCodePoints(std::string_view(window->text).substr(0, at)));
}

Value Count(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.positional[0].is_string()) {
    return WrongArgument(interpreter, "a string");
  }
  const auto window = WindowOf(interpreter, self, arguments);
  if (!window || !interpreter.Charge(self.size())) return Value();
  const std::string& wanted = arguments.positional[0].text();
  if (wanted.empty()) return Value::Of(CountCodePoints(window->text) + 1);
  int64_t count = 0;
  for (size_t at = window->text.find(wanted); at != std::string::npos;
       at = window->text.find(wanted, at + wanted.size())) {
    ++count;
  }
  return Value::Of(count);
}

Value Join(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.empty()) return WrongArgument(interpreter, "an iterable");
  const auto items = interpreter.Iterate(arguments.positional[0]);
  if (!items) return Value();
  TaintedText out;
  for (size_t i = 0; i < items->size(); ++i) {
    const Value& item = (*items)[i];
    if (!item.is_string()) {
      return interpreter.FailType(base::StrCat(
          "TypeError: sequence item ", i, ": expected str instance, ", item.TypeName(), " found"));
    }
    if (!interpreter.Charge(item.string().size() + self.size())) return Value();
    if (i > 0) out.Append(self);
    out.Append(item.string());
  }
  return interpreter.MakeString(std::move(out));
}

template <bool (*Predicate)(char32_t)>
Value AllAre(Interpreter&, const TaintedText& self, const Arguments&) {
  const std::u32string text = tokenizer::ToUtf32(self.text());
  return Value::Of(!text.empty() && std::all_of(text.begin(), text.end(), Predicate));
}

bool IsAlphanumeric(char32_t c) {
  return tokenizer::IsPythonAlpha(c) || tokenizer::IsPythonNumeric(c);
}

bool IsAscii(char32_t c) { return c < 0x80; }

template <bool kUpper>
Value HasCase(Interpreter& interpreter, const TaintedText& self, const Arguments&) {
  const auto result = interpreter.ApplyTest(kUpper ? "upper" : "lower", Value::Of(self), {});
  return Value::Of(result.value_or(false));
}

Value IsTitle(Interpreter&, const TaintedText& self, const Arguments&) {
  bool cased = false;
  bool after_cased = false;
  for (const char32_t c : tokenizer::ToUtf32(self.text())) {
    const bool upper = tokenizer::IsUpperCase(c) || tokenizer::IsTitleCase(c);
    const bool lower = tokenizer::IsLowerCase(c);
    if ((upper && after_cased) || (lower && !after_cased)) return Value::Of(false);
    after_cased = upper || lower;
    cased = cased || after_cased;
  }
  return Value::Of(cased);
}

// ljust, rjust, center.
template <int kSide>
Value Pad(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.positional[0].is_integral()) {
    return WrongArgument(interpreter, "a width");
  }
  const Integer width = arguments.positional[0].integer();
  const TaintedText fill = arguments.positional.size() > 1 && arguments.positional[1].is_string()
                               ? arguments.positional[1].string()
                               : TaintedText(" ", true);
  if (CountCodePoints(fill.text()) != 1) return WrongArgument(interpreter, "one fill character");
  const Integer missing = width - CountCodePoints(self.text());
  if (missing <= 0) return Value::Of(self);
  if (missing > 1'000'000) return interpreter.Fail(ErrorKind::kOther, "a text that is too long");
  if (!interpreter.Charge(static_cast<size_t>(missing))) return Value();
  const Integer left = kSide < 0   ? Integer{0}
                       : kSide > 0 ? missing
                                   : missing / 2 + (missing & width & 1);
  TaintedText out;
  for (Integer i = 0; i < left; ++i) out.Append(fill);
  out.Append(self);
  for (Integer i = left; i < missing; ++i) out.Append(fill);
  return interpreter.MakeString(std::move(out));
}

Value ZeroFill(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.positional[0].is_integral()) {
    return WrongArgument(interpreter, "a width");
  }
  const Integer missing = arguments.positional[0].integer() - CountCodePoints(self.text());
  if (missing <= 0) return Value::Of(self);
  if (missing > 1'000'000) return interpreter.Fail(ErrorKind::kOther, "a text that is too long");
  const bool has_sign = self.text().starts_with('-') || self.text().starts_with('+');
  TaintedText out = self.Part(0, has_sign ? 1 : 0);
  out.Append(std::string(static_cast<size_t>(missing), '0'), true);
  out.Append(self, has_sign ? 1 : 0, self.size());
  return interpreter.MakeString(std::move(out));
}

template <bool kLast>
Value Partition(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.positional[0].is_string() ||
      arguments.positional[0].string().empty()) {
    return WrongArgument(interpreter, "a separator");
  }
  const std::string& separator = arguments.positional[0].text();
  const size_t at = kLast ? self.text().rfind(separator) : self.text().find(separator);
  const Value empty = Value::Trusted("");
  if (at == std::string::npos) {
    return kLast ? interpreter.MakeList({empty, empty, Value::Of(self)}, true)
                 : interpreter.MakeList({Value::Of(self), empty, empty}, true);
  }
  return interpreter.MakeList(
      {interpreter.MakeString(self.Part(0, at)), arguments.positional[0],
       interpreter.MakeString(self.Part(at + separator.size(), self.size()))},
      true);
}

template <bool kPrefix>
Value RemoveEnd(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.positional[0].is_string()) {
    return WrongArgument(interpreter, "a string");
  }
  const std::string& end = arguments.positional[0].text();
  if (kPrefix) {
    const size_t begin = self.text().starts_with(end) ? end.size() : 0;
    return interpreter.MakeString(self.Part(begin, self.size()));
  }
  const size_t stop = self.size() - (self.text().ends_with(end) ? end.size() : 0);
  return interpreter.MakeString(self.Part(0, stop));
}

Value Format(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  return FormatBraces(interpreter, self, arguments);
}

Value FormatMap(Interpreter& interpreter, const TaintedText& self, const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.positional[0].is(Kind::kDict)) {
    return WrongArgument(interpreter, "a mapping");
  }
  Arguments named;
  for (const auto& [key, value] : arguments.positional[0].dict().entries()) {
    if (key.is_string()) named.named.emplace_back(key.text(), value);
  }
  return FormatBraces(interpreter, self, named);
}

}  // namespace

std::optional<Value> FindStringMethod(const Value& self, std::string_view name) {
  static const auto& methods =
      *new std::map<std::string_view, Method>{{"capitalize", Mapped<Capitalize>},
                                              {"casefold", Mapped<Lower>},
                                              {"center", Pad<0>},
                                              {"count", Count},
                                              {"endswith", HasEnd<false>},
                                              {"find", Find<false, false>},
                                              {"format", Format},
                                              {"format_map", FormatMap},
                                              {"index", Find<false, true>},
                                              {"isalnum", AllAre<IsAlphanumeric>},
                                              {"isalpha", AllAre<tokenizer::IsPythonAlpha>},
                                              {"isascii", AllAre<IsAscii>},
                                              {"isdecimal", AllAre<tokenizer::IsPythonDecimal>},
                                              {"isdigit", AllAre<tokenizer::IsPythonDigit>},
                                              {"islower", HasCase<false>},
                                              {"isnumeric", AllAre<tokenizer::IsPythonNumeric>},
                                              {"isspace", AllAre<tokenizer::IsPythonSpace>},
                                              {"istitle", IsTitle},
                                              {"isupper", HasCase<true>},
                                              {"join", Join},
                                              {"ljust", Pad<-1>},
                                              {"lower", Mapped<Lower>},
                                              {"lstrip", StripMethod<true, false>},
                                              {"partition", Partition<false>},
                                              {"removeprefix", RemoveEnd<true>},
                                              {"removesuffix", RemoveEnd<false>},
                                              {"replace", ReplaceMethod},
                                              {"rfind", Find<true, false>},
                                              {"rindex", Find<true, true>},
                                              {"rjust", Pad<1>},
                                              {"rpartition", Partition<true>},
                                              {"rsplit", SplitMethod<true>},
                                              {"rstrip", StripMethod<false, true>},
                                              {"split", SplitMethod<false>},
                                              {"splitlines", SplitLinesMethod},
                                              {"startswith", HasEnd<true>},
                                              {"strip", StripMethod<true, true>},
                                              {"swapcase", Mapped<SwapCase>},
                                              {"title", Mapped<Title>},
                                              {"upper", Mapped<Upper>},
                                              {"zfill", ZeroFill}};
  const auto it = methods.find(name);
  if (it == methods.end()) return std::nullopt;
  const Method method = it->second;
  return Value::FunctionOf(std::string(name),
                           [self, method](Interpreter& interpreter, const Arguments& arguments) {
                             if (!interpreter.Charge(self.string().size())) return Value();
                             return method(interpreter, self.string(), arguments);
                           });
}

}  // namespace tandem::chat_template
