#include "router/frontend/chat_template/interpreter.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/strings.h"
#include "common/tokenizer/unicode.h"
#include "router/frontend/chat_template/library.h"

namespace tandem::chat_template {
namespace {

// Frames of the C++ stack that one rendering may use: nested expressions, blocks and calls. A frame
// takes up to about 1 KiB, a thread's stack is 8 MiB.
constexpr int kMaxFrames = 1500;

// Roles that clients may name in a message. Templates build control tokens from them ("<|user|>"),
// so their text counts as the template's own.
constexpr std::array<std::string_view, 9> kRoles = {"system",  "user",      "assistant",
                                                    "tool",    "developer", "function",
                                                    "ipython", "model",     "environment"};

bool IsRole(const nlohmann::ordered_json& value) {
  return value.is_string() && std::find(kRoles.begin(), kRoles.end(),
                                        value.get_ref<const std::string&>()) != kRoles.end();
}

}  // namespace

Interpreter::Interpreter(const RenderOptions& options) : options_(options) {}

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->attributes.clear();
  for (const auto& value : held_) *value = Value();
  for (const ScopePtr& scope : captured_) scope->variables.clear();
}

TaintedText Interpreter::Run(const Body& body, const nlohmann::ordered_json& variables) {
  TaintedText out;
  auto globals = std::make_shared<Scope>();
  AddGlobals(globals.get());
  auto scope = std::make_shared<Scope>();
  scope->parent = globals;
  AddVariables(variables, scope.get());
  Execute(body, scope, &out);
  return out;
}

void Interpreter::AddVariables(const nlohmann::ordered_json& variables, Scope* scope) {
  if (!variables.is_object()) {
    FailType("the variables are no object");
    return;
  }
  for (const auto& [name, value] : variables.items()) {
    const auto& trusted = options_.trusted_variables;
    const bool is_trusted = std::find(trusted.begin(), trusted.end(), name) != trusted.end();
    scope->variables[name] = FromJson(value, is_trusted, 0);
  }
}

Value Interpreter::FromJson(const nlohmann::ordered_json& json, bool trusted, int depth) {
  if (failed() || !Charge(sizeof(Value))) return Value();
  if (depth > options_.limits.max_depth) {
    return Fail(ErrorKind::kOther, "the variables are nested too deep");
  }
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value::Of(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value::Of(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      return Value::Of(static_cast<Integer>(json.get<uint64_t>()));
    case nlohmann::json::value_t::number_float:
      return Value::Of(json.get<double>());
    case nlohmann::json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (tokenizer::FindInvalidUtf8(text)) return FailType("a variable is not valid UTF-8");
      return MakeString(TaintedText(text, trusted));
    }
    case nlohmann::json::value_t::array: {
      std::vector<Value> items;
      for (const auto& item : json) items.push_back(FromJson(item, trusted, depth + 1));
      return MakeList(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items()) {
        if (tokenizer::FindInvalidUtf8(key)) return FailType("a key is not valid UTF-8");
        const bool is_role = key == "role" && IsRole(value);
        dict->Set(MakeString(TaintedText(key, trusted)),
                  FromJson(value, trusted || is_role, depth + 1));
      }
      return MakeDict(std::move(dict));
    }
    default:
      return Value::None();
  }
}

Value Interpreter::Fail(ErrorKind kind, std::string message) {
  if (!error_) error_ = TemplateError{kind, std::move(message), line_};
  return Value();
}

Value Interpreter::FailUndefined(const Value& value) {
  const Undefined& undefined = value.undefined();
  return Fail(undefined.unsafe ? ErrorKind::kSecurity : ErrorKind::kUndefined, undefined.message);
}

bool Interpreter::Charge(size_t bytes) {
  ++steps_;
  bytes_ += static_cast<int64_t>(std::min<size_t>(bytes, size_t{1} << 40));
  if (steps_ > options_.limits.max_steps) {
    Fail(ErrorKind::kOther, base::StrCat("more than ", options_.limits.max_steps, " steps"));
  } else if (bytes_ > options_.limits.max_total_bytes) {
    Fail(ErrorKind::kOther,
         base::StrCat("more than ", options_.limits.max_total_bytes, " bytes of text and lists"));
  }
  return !failed();
}

Value Interpreter::MakeString(TaintedText text) {
  if (text.size() > options_.limits.max_output_bytes) {
    return Fail(ErrorKind::kOther,
                base::StrCat("a text of more than ", options_.limits.max_output_bytes, " bytes"));
  }
  if (!Charge(text.size())) return Value();
  return Value::Of(std::move(text));
}

Value Interpreter::MakeList(std::vector<Value> items, bool tuple) {
  if (!Charge(items.size() * sizeof(Value))) return Value();
  Value list = tuple ? Value::TupleOf(std::move(items)) : Value::ListOf(std::move(items));
  if (list.Depth() > options_.limits.max_depth) {
    return Fail(ErrorKind::kOther, "lists nested too deep");
  }
  return list;
}

Value Interpreter::MakeDict(std::shared_ptr<Dict> dict) {
  if (!Charge(dict->size() * 2 * sizeof(Value))) return Value();
  if (dict->depth() > options_.limits.max_depth) {
    return Fail(ErrorKind::kOther, "dicts nested too deep");
  }
  return Value::Of(std::shared_ptr<const Dict>(std::move(dict)));
}

Value Interpreter::MakeNamespace() {
  auto space = std::make_shared<Namespace>();
  namespaces_.push_back(space);
  return Value::Of(std::move(space));
}

void Interpreter::Append(const TaintedText& text, TaintedText* out) {
  if (out->size() + text.size() > options_.limits.max_output_bytes) {
    Fail(ErrorKind::kOther,
         base::StrCat("output of more than ", options_.limits.max_output_bytes, " bytes"));
    return;
  }
  if (Charge(text.size())) out->Append(text);
}

// Counts a frame of the C++ stack while it lives.
class Interpreter::Frame {
 public:
  explicit Frame(Interpreter* interpreter) : interpreter_(interpreter) {
    if (++interpreter_->frames_ > kMaxFrames) {
      interpreter_->Fail(ErrorKind::kOther, "nested too deep");
    }
  }
  ~Frame() { --interpreter_->frames_; }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;

 private:
  Interpreter* interpreter_;
};

Value Interpreter::Evaluate(const Expression& expression, const ScopePtr& scope) {
  const Frame frame(this);
  if (!Charge(0)) return Value();
  line_ = expression.line;
  return EvaluateNode(expression, scope);
}

Interpreter::Flow Interpreter::Execute(const Body& body, const ScopePtr& scope, TaintedText* out) {
  const Frame frame(this);
  for (const auto& statement : body) {
    if (!Charge(0)) return Flow::kNormal;
    line_ = statement->line;
    const Flow flow = ExecuteOne(*statement, scope, out);
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::ExecuteOne(const Statement& statement, const ScopePtr& scope,
                                          TaintedText* out) {
  const auto inner = [&] {
    auto made = std::make_shared<Scope>();
    made->parent = scope;
    return made;
  };
  switch (statement.kind) {
    case Statement::Kind::kText:
      if (Charge(statement.text.size())) Append(TaintedText(statement.text, true), out);
      return Flow::kNormal;
    case Statement::Kind::kPrint:
      Print(statement, scope, out);
      return Flow::kNormal;
    case Statement::Kind::kIf: {
      const bool chosen = Evaluate(*statement.expression, scope).Truthy();
      return failed() ? Flow::kNormal
                      : Execute(chosen ? statement.body : statement.otherwise, scope, out);
    }
    case Statement::Kind::kFor:
      return ExecuteFor(statement, scope, out);
    case Statement::Kind::kSet:
    case Statement::Kind::kSetBlock:
      ExecuteSet(statement, scope);
      return Flow::kNormal;
    case Statement::Kind::kMacro:
      scope->variables[statement.name] = MakeMacro(statement, scope, statement.name);
      return Flow::kNormal;
    case Statement::Kind::kCall:
      ExecuteCallBlock(statement, scope, out);
      return Flow::kNormal;
    case Statement::Kind::kFilter: {
      const Value value =
          FilterChain(statement.expression.get(), scope, RunBlock(statement.body, inner()));
      if (!failed()) Append(ToText(value), out);
      return Flow::kNormal;
    }
    case Statement::Kind::kWith:
      ExecuteWith(statement, scope, out);
      return Flow::kNormal;
    case Statement::Kind::kScope:
      return Execute(statement.body, inner(), out);
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::Print(const Statement& statement, const ScopePtr& scope, TaintedText* out) {
  const Value value = Evaluate(*statement.expression, scope);
  if (failed()) return;
  if (value.is_string()) {
    Append(value.string(), out);
  } else {
    Append(ToText(value), out);
  }
}

Value Interpreter::RunBlock(const Body& body, const ScopePtr& scope) {
  TaintedText text;
  Execute(body, scope, &text);
  return failed() ? Value() : MakeString(std::move(text));
}

// `chain` is filters whose innermost input is missing: `input` takes its place.
Value Interpreter::FilterChain(const Expression* chain, const ScopePtr& scope, Value input) {
  if (failed()) return Value();
  std::vector<const Expression*> filters;
  for (; chain != nullptr; chain = chain->children[0].get()) filters.push_back(chain);
  for (auto it = filters.rbegin(); it != filters.rend() && !failed(); ++it) {
    const auto arguments = EvaluateArguments((*it)->arguments, scope);
    if (!arguments) return Value();
    input = ApplyFilter((*it)->name, input, *arguments);
  }
  return input;
}

void Interpreter::ExecuteSet(const Statement& statement, const ScopePtr& scope) {
  Value value;
  if (statement.kind == Statement::Kind::kSet) {
    value = Evaluate(*statement.expression, scope);
  } else {
    auto inner = std::make_shared<Scope>();
    inner->parent = scope;
    value = FilterChain(statement.expression.get(), scope, RunBlock(statement.body, inner));
  }
  if (!failed()) Assign(statement.target, value, scope.get());
}

void Interpreter::Assign(const Target& target, const Value& value, Scope* scope) {
  if (!target.parts.empty()) {
    const auto items = Iterate(value);
    if (!items) return;
    if (items->size() != target.parts.size()) {
      FailType(base::StrCat("ValueError: expected ", target.parts.size(), " values to unpack, got ",
                            items->size()));
      return;
    }
    for (size_t i = 0; i < items->size(); ++i) Assign(target.parts[i], (*items)[i], scope);
    return;
  }
  if (target.attribute.empty()) {
    scope->variables[target.name] = value;
    return;
  }
  const Value space = Lookup(target.name, scope);
  if (!space.is(Value::Kind::kNamespace)) {
    Fail(ErrorKind::kOther,
         "TemplateRuntimeError: cannot assign attribute on non-namespace object");
  } else if (target.attribute.starts_with('_')) {
    Fail(ErrorKind::kSecurity,
         base::StrCat("underscore-prefixed attribute '", target.attribute, "' on a namespace"));
  } else {
    space.space().attributes[target.attribute] = value;
  }
}

void Interpreter::ExecuteWith(const Statement& statement, const ScopePtr& scope, TaintedText* out) {
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  for (const auto& [target, expression] : statement.assignments) {
    const Value value = Evaluate(*expression, scope);
    if (failed()) return;
    Assign(target, value, inner.get());
  }
  Execute(statement.body, inner, out);
}

void Interpreter::ExecuteCallBlock(const Statement& statement, const ScopePtr& scope,
                                   TaintedText* out) {
  const Expression& call = *statement.expression;
  const Value callee = Evaluate(*call.children[0], scope);
  auto arguments = EvaluateArguments(call.arguments, scope);
  if (!arguments || failed()) return;
  arguments->named.emplace_back("caller", MakeMacro(statement, scope, "caller"));
  const Value result = Call(callee, *arguments);
  if (!failed()) Append(ToText(result), out);
}

Value Interpreter::MakeMacro(const Statement& statement, const ScopePtr& scope,
                             const std::string& name) {
  captured_.push_back(scope);
  const auto callable = std::make_shared<const Callable>(
      Callable{name,
               [&statement, scope, name](Interpreter& interpreter, const Arguments& arguments) {
                 return interpreter.CallMacro(statement, scope, name, arguments);
               },
               true});
  return Value::Of(callable);
}

Value Interpreter::CallMacro(const Statement& macro, const ScopePtr& definition,
                             const std::string& name, const Arguments& arguments) {
  if (++calls_ > options_.limits.max_depth) {
    Fail(ErrorKind::kOther, "RecursionError: calls nested too deep");
  }
  Value result;
  auto scope = std::make_shared<Scope>();
  scope->parent = definition;
  if (!failed() && BindArguments(macro, name, arguments, scope)) {
    result = RunBlock(macro.body, scope);
  }
  --calls_;
  return result;
}

bool Interpreter::BindArguments(const Statement& macro, const std::string& name,
                                const Arguments& arguments, const ScopePtr& scope) {
  const size_t count = macro.parameters.size();
  std::vector<bool> used(arguments.named.size());
  for (size_t i = 0; i < count; ++i) {
    const Parameter& parameter = macro.parameters[i];
    const Value* given = i < arguments.positional.size() ? &arguments.positional[i] : nullptr;
    for (size_t k = 0; k < arguments.named.size(); ++k) {
      if (arguments.named[k].first != parameter.name) continue;
      if (given != nullptr) {
        FailType(base::StrCat("TypeError: macro '", name, "' got multiple values for argument '",
                              parameter.name, "'"));
        return false;
      }
      given = &arguments.named[k].second;
      used[k] = true;
    }
    Value value =
        given != nullptr ? *given
        : parameter.default_value
            ? Evaluate(*parameter.default_value, scope)
            : Value::UndefinedOf(base::StrCat("parameter '", parameter.name, "' was not provided"));
    scope->variables[parameter.name] = std::move(value);
  }
  auto extra = std::make_shared<Dict>();
  for (size_t k = 0; k < arguments.named.size(); ++k) {
    const auto& [key, value] = arguments.named[k];
    if (used[k]) continue;
    if (key == "caller" && macro.takes_caller) {
      scope->variables[key] = value;
    } else if (macro.takes_kwargs) {
      extra->Set(Value::Trusted(key), value);
    } else {
      FailType(base::StrCat("TypeError: macro '", name, "' takes no keyword argument '", key, "'"));
      return false;
    }
  }
  if (arguments.positional.size() > count && !macro.takes_varargs) {
    FailType(
        base::StrCat("TypeError: macro '", name, "' takes not more than ", count, " argument(s)"));
    return false;
  }
  if (macro.takes_kwargs) scope->variables["kwargs"] = MakeDict(std::move(extra));
  if (macro.takes_varargs) {
    const auto first = arguments.positional.begin() +
                       static_cast<std::ptrdiff_t>(std::min(count, arguments.positional.size()));
    scope->variables["varargs"] =
        MakeList(std::vector<Value>(first, arguments.positional.end()), true);
  }
  return !failed();
}

}  // namespace tandem::chat_template
