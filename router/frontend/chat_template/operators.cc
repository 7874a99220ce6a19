// Arithmetic and comparison, with Python's rules.
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/interpreter.h"
#include "router/frontend/chat_template/python_text.h"
#include "router/frontend/chat_template/text_operations.h"

namespace tandem::chat_template {
namespace {

using Kind = Value::Kind;

constexpr int64_t kMaxExponent = 4096;  // of integer powers; larger ones overflow anyway

}  // namespace

Value Interpreter::Binary(const std::string& op, const Value& a, const Value& b) {
  if (a.is_undefined()) return FailUndefined(a);
  if (op == "%" && a.is_string()) {
    return FormatPercent(*this, a.string(), b.is_tuple() ? b.list().items : std::vector<Value>{b});
  }
  if (b.is_undefined()) return FailUndefined(b);
  if (op == "+" && !(a.is_number() && b.is_number())) return Add(a, b);
  if (op == "*" && !(a.is_number() && b.is_number())) return Multiply(a, b);
  if (!a.is_number() || !b.is_number()) {
    return FailType(base::StrCat("TypeError: unsupported operand type(s) for ", op, ": '",
                                 a.TypeName(), "' and '", b.TypeName(), "'"));
  }
  return Arithmetic(op, a, b);
}

Value Interpreter::Add(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    const bool markup = a.string().is_markup() || b.string().is_markup();
    TaintedText text;
    Append(markup ? Escaped(a.string()) : a.string(), &text);
    Append(markup ? Escaped(b.string()) : b.string(), &text);
    if (markup) text.set_markup();
    return failed() ? Value() : MakeString(std::move(text));
  }
  if (a.is(Kind::kList) && b.is(Kind::kList) && a.is_tuple() == b.is_tuple()) {
    std::vector<Value> items = a.list().items;
    items.insert(items.end(), b.list().items.begin(), b.list().items.end());
    return MakeList(std::move(items), a.is_tuple());
  }
  if (a.is_string() || a.is(Kind::kList)) {
    return FailType(base::StrCat("TypeError: can only concatenate ", a.TypeName(), " (not \"",
                                 b.TypeName(), "\") to ", a.TypeName()));
  }
  return FailType(base::StrCat("TypeError: unsupported operand type(s) for +: '", a.TypeName(),
                               "' and '", b.TypeName(), "'"));
}

Value Interpreter::Multiply(const Value& a, const Value& b) {
  if ((a.is_string() || a.is(Kind::kList)) && b.is_integral()) return Repeat(a, b.integer());
  if ((b.is_string() || b.is(Kind::kList)) && a.is_integral()) return Repeat(b, a.integer());
  return FailType(base::StrCat("TypeError: unsupported operand type(s) for *: '", a.TypeName(),
                               "' and '", b.TypeName(), "'"));
}

Value Interpreter::Repeat(const Value& sequence, Integer count) {
  const size_t size =
      sequence.is_string() ? sequence.string().size() : sequence.list().items.size();
  const Integer times = size == 0 ? Integer{0} : std::max(count, Integer{0});
  if (times * static_cast<Integer>(size) > static_cast<Integer>(options_.limits.max_output_bytes)) {
    return Fail(ErrorKind::kOther, "a repetition that is too long");
  }
  if (sequence.is_string()) {
    TaintedText text;
    for (Integer i = 0; i < times; ++i) text.Append(sequence.string());
    return MakeString(std::move(text));
  }
  if (!Charge(static_cast<size_t>(times) * size * sizeof(Value))) return Value();
  std::vector<Value> items;
  for (Integer i = 0; i < times; ++i) {
    items.insert(items.end(), sequence.list().items.begin(), sequence.list().items.end());
  }
  return MakeList(std::move(items), sequence.is_tuple());
}

Value Interpreter::Arithmetic(const std::string& op, const Value& a, const Value& b) {
  const bool divides = op == "/" || op == "//" || op == "%";
  if (divides && b.number() == 0) {
    return FailType("ZeroDivisionError: division by zero");
  }
  const bool negative_power = op == "**" && b.is_integral() && b.integer() < 0;
  if (a.is_integral() && b.is_integral() && op != "/" && !negative_power) {
    return IntegerArithmetic(op, a.integer(), b.integer());
  }
  return FloatArithmetic(op, a.number(), b.number());
}

Value Interpreter::IntegerArithmetic(const std::string& op, Integer a, Integer b) {
  Integer result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    result = 1;
    if (b > kMaxExponent && (a > 1 || a < -1)) overflow = true;
    if (a >= -1 && a <= 1) b = b == 0 ? Integer{0} : (b % 2 == 0 ? Integer{2} : Integer{1});
    for (Integer i = 0; i < b && !overflow; ++i) {
      overflow = __builtin_mul_overflow(result, a, &result);
    }
  } else if (b == -1) {  // the one quotient that can overflow
    overflow = __builtin_sub_overflow(Integer{0}, a, &result);
    if (op == "%") result = 0;
  } else {
    Integer quotient = a / b;
    Integer remainder = a % b;
    if (remainder != 0 && (remainder < 0) != (b < 0)) {
      --quotient;
      remainder += b;
    }
    result = op == "//" ? quotient : remainder;
  }
  if (overflow) return Fail(ErrorKind::kOther, "an integer beyond 128 bits");
  return Value::Of(result);
}

Value Interpreter::FloatArithmetic(const std::string& op, double a, double b) {
  if (op == "+") return Value::Of(a + b);
  if (op == "-") return Value::Of(a - b);
  if (op == "*") return Value::Of(a * b);
  if (op == "/") return Value::Of(a / b);
  if (op == "**") {
    const double power = std::pow(a, b);
    if (std::isinf(power) && !std::isinf(a) && !std::isinf(b)) {
      return FailType("OverflowError: (34, 'Numerical result out of range')");
    }
    if (a < 0 && std::isnan(power)) return FailType("a complex number");
    return Value::Of(power);
  }
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    remainder += b;
    quotient -= 1;
  }
  return Value::Of(op == "//" ? std::floor(quotient + 0.5) : remainder);
}

std::optional<bool> Interpreter::Compare(const std::string& op, const Value& a, const Value& b) {
  if (!Charge(a.is_string() && b.is_string() ? std::min(a.string().size(), b.string().size())
                                             : 0)) {
    return std::nullopt;
  }
  if (op == "==") return Value::Equal(a, b);
  if (op == "!=") return !Value::Equal(a, b);
  if (op == "in") return Contains(b, a);
  if (op == "not in") {
    const auto found = Contains(b, a);
    return found ? std::optional(!*found) : std::nullopt;
  }
  if (op == "<") return Less(a, b);
  if (op == ">") return Less(b, a);
  if (a.is_number() && b.is_number()) {
    return op == "<=" ? a.number() <= b.number() : a.number() >= b.number();
  }
  const auto less = op == "<=" ? Less(b, a) : Less(a, b);
  return less ? std::optional(!*less) : std::nullopt;
}

std::optional<bool> Interpreter::Less(const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) {
      FailUndefined(*value);
      return std::nullopt;
    }
  }
  if (a.is_number() && b.is_number()) {
    return a.is_integral() && b.is_integral() ? a.integer() < b.integer() : a.number() < b.number();
  }
  // UTF-8 sorts like code points.
  if (a.is_string() && b.is_string()) return a.text() < b.text();
  if (a.is(Kind::kList) && b.is(Kind::kList) && a.is_tuple() == b.is_tuple()) {
    const auto& x = a.list().items;
    const auto& y = b.list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!Charge(0)) return std::nullopt;
      if (!Value::Equal(x[i], y[i])) return Less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  FailType(base::StrCat("TypeError: '<' not supported between instances of '", a.TypeName(),
                        "' and '", b.TypeName(), "'"));
  return std::nullopt;
}

std::optional<bool> Interpreter::Contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        FailType(base::StrCat("TypeError: 'in <string>' requires string as left operand, not ",
                              item.TypeName()));
        return std::nullopt;
      }
      if (!Charge(container.string().size())) return std::nullopt;
      return container.text().find(item.text()) != std::string::npos;
    case Kind::kDict:
      return container.dict().Find(item) != nullptr;
    case Kind::kUndefined:
      if (container.undefined().unsafe) {
        FailUndefined(container);
        return std::nullopt;
      }
      return false;
    default: {
      const auto items = Iterate(container);
      if (!items) return std::nullopt;
      for (const Value& one : *items) {
        if (!Charge(0)) return std::nullopt;
        if (Value::Equal(one, item)) return true;
      }
      return false;
    }
  }
}

}  // namespace tandem::chat_template
