// What stands after `is`.
#include <map>
#include <utility>

#include "common/base/strings.h"
#include "common/tokenizer/unicode.h"
#include "router/frontend/chat_template/library.h"
#include "router/frontend/chat_template/text_operations.h"

namespace tandem::chat_template {
namespace {

using Kind = Value::Kind;

template <Kind kKind>
std::optional<bool> IsKind(Interpreter&, const Value& input, const Arguments&) {
  return input.is(kKind);
}

std::optional<bool> IsDefined(Interpreter&, const Value& input, const Arguments&) {
  return !input.is_undefined();
}

std::optional<bool> IsNumber(Interpreter&, const Value& input, const Arguments&) {
  return input.is_number();
}

std::optional<bool> IsTrue(Interpreter&, const Value& input, const Arguments&) {
  return input.is(Kind::kBool) && input.boolean();
}

std::optional<bool> IsFalse(Interpreter&, const Value& input, const Arguments&) {
  return input.is(Kind::kBool) && !input.boolean();
}

std::optional<bool> IsCallable(Interpreter&, const Value& input, const Arguments&) {
  return input.is(Kind::kCallable) || input.is(Kind::kLoop);
}

std::optional<bool> IsIterable(Interpreter&, const Value& input, const Arguments&) {
  return input.is_string() || input.is(Kind::kList) || input.is(Kind::kDict) ||
         input.is(Kind::kRange) || input.is_undefined() || input.is(Kind::kLoop);
}

std::optional<bool> IsSequence(Interpreter&, const Value& input, const Arguments&) {
  return input.is_string() || input.is(Kind::kList) || input.is(Kind::kDict) ||
         input.is(Kind::kRange) || input.is_undefined();
}

std::optional<bool> Never(Interpreter&, const Value&, const Arguments&) { return false; }

// The remainder of an integer, for odd, even and divisibleby.
std::optional<bool> HasRemainder(Interpreter& self, const Value& input, const Value& divisor,
                                 int wanted) {
  const Value remainder = self.Binary("%", input, divisor);
  if (self.failed()) return std::nullopt;
  return Value::Equal(remainder, Value::Of(wanted));
}

std::optional<bool> IsOdd(Interpreter& self, const Value& input, const Arguments&) {
  return HasRemainder(self, input, Value::Of(2), 1);
}

std::optional<bool> IsEven(Interpreter& self, const Value& input, const Arguments&) {
  return HasRemainder(self, input, Value::Of(2), 0);
}

const Value* FirstArgument(Interpreter& self, const Arguments& arguments) {
  if (arguments.positional.empty()) {
    self.FailType("TypeError: the test needs an argument");
    return nullptr;
  }
  return &arguments.positional[0];
}

std::optional<bool> IsDivisibleBy(Interpreter& self, const Value& input,
                                  const Arguments& arguments) {
  const Value* divisor = FirstArgument(self, arguments);
  return divisor != nullptr ? HasRemainder(self, input, *divisor, 0) : std::nullopt;
}

template <const char* kOperator>
std::optional<bool> Compares(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* other = FirstArgument(self, arguments);
  return other != nullptr ? self.Compare(kOperator, input, *other) : std::nullopt;
}

constexpr char kEqual[] = "==";
constexpr char kNotEqual[] = "!=";
constexpr char kLess[] = "<";
constexpr char kLessEqual[] = "<=";
constexpr char kGreater[] = ">";
constexpr char kGreaterEqual[] = ">=";
constexpr char kIn[] = "in";

// Python's `is`: equal values of one type, for what templates can tell apart.
std::optional<bool> IsSameAs(Interpreter& self, const Value& input, const Arguments& arguments) {
  const Value* other = FirstArgument(self, arguments);
  if (other == nullptr) return std::nullopt;
  return input.kind() == other->kind() && Value::Equal(input, *other);
}

template <bool kUpper>
std::optional<bool> HasCase(Interpreter& self, const Value& input, const Arguments&) {
  bool cased = false;
  for (const char32_t c : tokenizer::ToUtf32(self.ToText(input).text())) {
    if (kUpper ? tokenizer::IsLowerCase(c) : tokenizer::IsUpperCase(c)) return false;
    if (tokenizer::IsTitleCase(c)) return false;
    cased = cased || tokenizer::IsUpperCase(c) || tokenizer::IsLowerCase(c);
  }
  return cased;
}

std::optional<bool> IsFilter(Interpreter&, const Value& input, const Arguments&) {
  return input.is_string() && FindFilter(input.text()) != nullptr;
}

std::optional<bool> IsTest(Interpreter&, const Value& input, const Arguments&) {
  return input.is_string() && FindTest(input.text()) != nullptr;
}

}  // namespace

Test FindTest(std::string_view name) {
  static const auto& tests =
      *new std::map<std::string_view, Test>{{"!=", Compares<kNotEqual>},
                                            {"<", Compares<kLess>},
                                            {"<=", Compares<kLessEqual>},
                                            {"==", Compares<kEqual>},
                                            {">", Compares<kGreater>},
                                            {">=", Compares<kGreaterEqual>},
                                            {"boolean", IsKind<Kind::kBool>},
                                            {"callable", IsCallable},
                                            {"defined", IsDefined},
                                            {"divisibleby", IsDivisibleBy},
                                            {"eq", Compares<kEqual>},
                                            {"equalto", Compares<kEqual>},
                                            {"escaped", Never},
                                            {"even", IsEven},
                                            {"false", IsFalse},
                                            {"filter", IsFilter},
                                            {"float", IsKind<Kind::kFloat>},
                                            {"ge", Compares<kGreaterEqual>},
                                            {"greaterthan", Compares<kGreater>},
                                            {"gt", Compares<kGreater>},
                                            {"in", Compares<kIn>},
                                            {"integer", IsKind<Kind::kInteger>},
                                            {"iterable", IsIterable},
                                            {"le", Compares<kLessEqual>},
                                            {"lessthan", Compares<kLess>},
                                            {"lower", HasCase<false>},
                                            {"lt", Compares<kLess>},
                                            {"mapping", IsKind<Kind::kDict>},
                                            {"ne", Compares<kNotEqual>},
                                            {"none", IsKind<Kind::kNone>},
                                            {"number", IsNumber},
                                            {"odd", IsOdd},
                                            {"sameas", IsSameAs},
                                            {"sequence", IsSequence},
                                            {"string", IsKind<Kind::kString>},
                                            {"test", IsTest},
                                            {"true", IsTrue},
                                            {"undefined", IsKind<Kind::kUndefined>},
                                            {"upper", HasCase<true>}};
  const auto it = tests.find(name);
  return it == tests.end() ? nullptr : it->second;
}

std::optional<bool> Interpreter::ApplyTest(const std::string& name, const Value& input,
                                           const Arguments& arguments) {
  const Test test = FindTest(name);
  if (test == nullptr) {
    Fail(ErrorKind::kSyntax, base::StrCat("No test named '", name, "'."));
    return std::nullopt;
  }
  if (!Charge(0)) return std::nullopt;
  return test(*this, input, arguments);
}

}  // namespace tandem::chat_template
