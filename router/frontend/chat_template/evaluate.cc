// Expressions.
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/interpreter.h"

namespace tandem::chat_template {

Value Interpreter::EvaluateNode(const Expression& e, const ScopePtr& scope) {
  using Kind = Expression::Kind;
  switch (e.kind) {
    case Kind::kConstant:
      return e.constant;
    case Kind::kName:
      return Lookup(e.name, scope.get());
    case Kind::kList:
    case Kind::kTuple:
      return EvaluateSequence(e, scope);
    case Kind::kDict:
      return EvaluateDict(e, scope);
    case Kind::kAttribute: {
      const Value value = Evaluate(*e.children[0], scope);
      return failed() ? Value() : Attribute(value, e.name);
    }
    case Kind::kSubscript: {
      const Value value = Evaluate(*e.children[0], scope);
      const Value key = Evaluate(*e.children[1], scope);
      return failed() ? Value() : Subscript(value, key);
    }
    case Kind::kSlice:
      return EvaluateSlice(e, scope);
    case Kind::kCall:
      return EvaluateCall(e, scope);
    case Kind::kFilter:
    case Kind::kTest: {
      const Value input = Evaluate(*e.children[0], scope);
      const auto arguments = EvaluateArguments(e.arguments, scope);
      if (failed() || !arguments) return Value();
      if (e.kind == Kind::kFilter) return ApplyFilter(e.name, input, *arguments);
      const auto result = ApplyTest(e.name, input, *arguments);
      return result ? Value::Of(*result) : Value();
    }
    case Kind::kUnary:
      return EvaluateUnary(e, scope);
    case Kind::kBinary: {
      const Value a = Evaluate(*e.children[0], scope);
      const Value b = Evaluate(*e.children[1], scope);
      return failed() ? Value() : Binary(e.name, a, b);
    }
    case Kind::kAnd:
    case Kind::kOr: {
      const Value a = Evaluate(*e.children[0], scope);
      return failed() || a.Truthy() == (e.kind == Kind::kOr) ? a : Evaluate(*e.children[1], scope);
    }
    case Kind::kConcatenate:
      return EvaluateConcatenate(e, scope);
    case Kind::kCompare:
      return EvaluateCompare(e, scope);
    case Kind::kConditional:
      return EvaluateConditional(e, scope);
  }
  return Value();
}

Value Interpreter::Lookup(const std::string& name, const Scope* scope) const {
  for (; scope != nullptr; scope = scope->parent.get()) {
    const auto it = scope->variables.find(name);
    if (it != scope->variables.end()) return it->second;
  }
  return Value::UndefinedOf(base::StrCat("'", name, "' is undefined"));
}

Value Interpreter::EvaluateSequence(const Expression& e, const ScopePtr& scope) {
  std::vector<Value> items;
  items.reserve(e.children.size());
  for (const ExpressionPtr& child : e.children) {
    items.push_back(Evaluate(*child, scope));
    if (failed()) return Value();
  }
  return MakeList(std::move(items), e.kind == Expression::Kind::kTuple);
}

Value Interpreter::EvaluateDict(const Expression& e, const ScopePtr& scope) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < e.children.size(); i += 2) {
    Value key = Evaluate(*e.children[i], scope);
    Value value = Evaluate(*e.children[i + 1], scope);
    if (failed()) return Value();
    if (key.is(Value::Kind::kDict) || (key.is(Value::Kind::kList) && !key.is_tuple())) {
      return FailType(base::StrCat("TypeError: unhashable type: '", key.TypeName(), "'"));
    }
    dict->Set(std::move(key), std::move(value));
  }
  return MakeDict(std::move(dict));
}

Value Interpreter::EvaluateUnary(const Expression& e, const ScopePtr& scope) {
  const Value value = Evaluate(*e.children[0], scope);
  if (failed()) return Value();
  if (e.name == "not") return Value::Of(!value.Truthy());
  if (value.is_undefined()) return FailUndefined(value);
  if (!value.is_number()) {
    return FailType(base::StrCat("TypeError: bad operand type for unary ", e.name, ": '",
                                 value.TypeName(), "'"));
  }
  const bool negative = e.name == "-";
  if (value.is(Value::Kind::kFloat)) {
    return Value::Of(negative ? -value.number() : value.number());
  }
  return IntegerArithmetic(negative ? "-" : "+", 0, value.integer());
}

Value Interpreter::EvaluateCompare(const Expression& e, const ScopePtr& scope) {
  Value left = Evaluate(*e.children[0], scope);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    Value right = Evaluate(*e.children[i + 1], scope);
    if (failed()) return Value();
    const auto holds = Compare(e.operators[i], left, right);
    if (!holds) return Value();
    if (!*holds) return Value::Of(false);
    left = std::move(right);
  }
  return Value::Of(true);
}

Value Interpreter::EvaluateConcatenate(const Expression& e, const ScopePtr& scope) {
  TaintedText text;
  for (const ExpressionPtr& child : e.children) {
    const Value part = Evaluate(*child, scope);
    if (failed()) return Value();
    Append(part.is_string() ? part.string() : ToText(part), &text);
  }
  return failed() ? Value() : MakeString(std::move(text));
}

Value Interpreter::EvaluateConditional(const Expression& e, const ScopePtr& scope) {
  const bool chosen = Evaluate(*e.children[1], scope).Truthy();
  if (failed()) return Value();
  if (chosen) return Evaluate(*e.children[0], scope);
  if (e.children[2]) return Evaluate(*e.children[2], scope);
  return Value::UndefinedOf(
      "the inline if-expression evaluated to false and no else section was defined.");
}

Value Interpreter::EvaluateSlice(const Expression& e, const ScopePtr& scope) {
  Value parts[4];
  for (size_t i = 0; i < 4; ++i) {
    parts[i] = e.children[i] ? Evaluate(*e.children[i], scope) : Value::None();
    if (failed()) return Value();
  }
  return Slice(parts[0], parts[1], parts[2], parts[3]);
}

std::optional<Arguments> Interpreter::EvaluateArguments(const CallArguments& call,
                                                        const ScopePtr& scope) {
  Arguments arguments;
  for (const ExpressionPtr& argument : call.positional) {
    arguments.positional.push_back(Evaluate(*argument, scope));
    if (failed()) return std::nullopt;
  }
  if (call.star) {
    const auto items = Iterate(Evaluate(*call.star, scope));
    if (!items || failed()) return std::nullopt;
    arguments.positional.insert(arguments.positional.end(), items->begin(), items->end());
  }
  for (const auto& [name, argument] : call.named) {
    arguments.named.emplace_back(name, Evaluate(*argument, scope));
    if (failed()) return std::nullopt;
  }
  if (call.star_star) {
    const Value dict = Evaluate(*call.star_star, scope);
    if (failed()) return std::nullopt;
    if (!dict.is(Value::Kind::kDict)) {
      FailType("TypeError: argument after ** must be a mapping");
      return std::nullopt;
    }
    for (const auto& [key, value] : dict.dict().entries()) {
      arguments.named.emplace_back(key.is_string() ? key.text() : std::string(), value);
    }
  }
  return arguments;
}

Value Interpreter::EvaluateCall(const Expression& e, const ScopePtr& scope) {
  const Value callee = Evaluate(*e.children[0], scope);
  if (failed()) return Value();
  const auto arguments = EvaluateArguments(e.arguments, scope);
  return arguments ? Call(callee, *arguments) : Value();
}

Value Interpreter::Call(const Value& callee, const Arguments& arguments) {
  if (failed() || !Charge(0)) return Value();
  if (callee.is(Value::Kind::kCallable)) {
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): it may overwrite its own name
    const Value keep = callee;
    return keep.callable().function(*this, arguments);
  }
  if (callee.is(Value::Kind::kLoop)) {
    const auto loop = callee.loop();
    if (!loop->recurse) {
      return FailType("TypeError: the loop must have the 'recursive' marker to be called");
    }
    return loop->recurse(*this, arguments);
  }
  if (callee.is_undefined()) return FailUndefined(callee);
  return FailType(base::StrCat("TypeError: '", callee.TypeName(), "' object is not callable"));
}

}  // namespace tandem::chat_template
