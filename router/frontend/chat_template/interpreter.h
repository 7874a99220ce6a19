#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "router/frontend/chat_template/ast.h"
#include "router/frontend/chat_template/chat_template.h"
#include "router/frontend/chat_template/value.h"

namespace tandem::chat_template {

// Variables by name; what is not here is looked for in the parent.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::unordered_map<std::string, Value> variables;
};

// One rendering. After the first error everything returns at once with an undefined value, and
// error() holds it. Not thread-safe.
class Interpreter {
 public:
  explicit Interpreter(const RenderOptions& options);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Renders `body` with `variables` (an object).
  TaintedText Run(const Body& body, const nlohmann::ordered_json& variables);

  bool failed() const { return error_.has_value(); }
  const std::optional<TemplateError>& error() const { return error_; }
  // Notes the error, with the line being worked on, unless there is one; returns undefined.
  Value Fail(ErrorKind kind, std::string message);
  Value FailType(std::string message) { return Fail(ErrorKind::kType, std::move(message)); }
  // The error of using an undefined value.
  Value FailUndefined(const Value& value);

  // Work of the size of `bytes`: false, with an error, when the limits are used up.
  bool Charge(size_t bytes);
  // A new string or list; charged, and an error when it is too large or too deep.
  Value MakeString(TaintedText text);
  Value MakeList(std::vector<Value> items, bool tuple = false);
  Value MakeDict(std::shared_ptr<Dict> dict);
  Value MakeNamespace();

  // What `for` walks over; nothing after an error.
  std::optional<std::vector<Value>> Iterate(const Value& value);
  // len(); nothing after an error.
  std::optional<size_t> Length(const Value& value);
  // str(), and repr().
  TaintedText ToText(const Value& value);
  TaintedText ToRepr(const Value& value);
  // value.name and value[key], with the sandbox's rules.
  Value Attribute(const Value& value, const std::string& name);
  Value Subscript(const Value& value, const Value& key);
  Value Slice(const Value& value, const Value& start, const Value& stop, const Value& step);
  Value Call(const Value& callee, const Arguments& arguments);
  Value ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments);
  std::optional<bool> ApplyTest(const std::string& name, const Value& input,
                                const Arguments& arguments);
  Value Binary(const std::string& op, const Value& a, const Value& b);
  std::optional<bool> Compare(const std::string& op, const Value& a, const Value& b);
  // Python's <, an error for values without an order.
  std::optional<bool> Less(const Value& a, const Value& b);

  int64_t now_unix_s() const { return options_.now_unix_s; }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  using ScopePtr = std::shared_ptr<Scope>;
  class Frame;

  void AddVariables(const nlohmann::ordered_json& variables, Scope* scope);
  Value FromJson(const nlohmann::ordered_json& json, bool trusted, int depth);

  Flow Execute(const Body& body, const ScopePtr& scope, TaintedText* out);
  Flow ExecuteOne(const Statement& statement, const ScopePtr& scope, TaintedText* out);
  void Print(const Statement& statement, const ScopePtr& scope, TaintedText* out);
  Flow ExecuteFor(const Statement& statement, const ScopePtr& scope, TaintedText* out);
  Flow RunLoop(const Statement& statement, const ScopePtr& scope, const Value& over, int depth,
               TaintedText* out);
  std::optional<std::vector<Value>> Filtered(const Statement& statement, const ScopePtr& scope,
                                             std::vector<Value> items);
  void ExecuteSet(const Statement& statement, const ScopePtr& scope);
  void ExecuteWith(const Statement& statement, const ScopePtr& scope, TaintedText* out);
  void ExecuteCallBlock(const Statement& statement, const ScopePtr& scope, TaintedText* out);
  Value RunBlock(const Body& body, const ScopePtr& scope);
  Value FilterChain(const Expression* chain, const ScopePtr& scope, Value input);
  void Assign(const Target& target, const Value& value, Scope* scope);
  Value MakeMacro(const Statement& statement, const ScopePtr& scope, const std::string& name);
  Value CallMacro(const Statement& macro, const ScopePtr& definition, const std::string& name,
                  const Arguments& arguments);
  bool BindArguments(const Statement& macro, const std::string& name, const Arguments& arguments,
                     const ScopePtr& scope);
  void Append(const TaintedText& text, TaintedText* out);

  Value Evaluate(const Expression& expression, const ScopePtr& scope);
  Value EvaluateNode(const Expression& expression, const ScopePtr& scope);
  Value Lookup(const std::string& name, const Scope* scope) const;
  Value EvaluateSequence(const Expression& expression, const ScopePtr& scope);
  Value EvaluateDict(const Expression& expression, const ScopePtr& scope);
  Value EvaluateUnary(const Expression& expression, const ScopePtr& scope);
  Value EvaluateCompare(const Expression& expression, const ScopePtr& scope);
  Value EvaluateConcatenate(const Expression& expression, const ScopePtr& scope);
  Value EvaluateConditional(const Expression& expression, const ScopePtr& scope);
  Value EvaluateSlice(const Expression& expression, const ScopePtr& scope);
  Value EvaluateCall(const Expression& expression, const ScopePtr& scope);
  std::optional<Arguments> EvaluateArguments(const CallArguments& arguments, const ScopePtr& scope);

  Value Add(const Value& a, const Value& b);
  Value Multiply(const Value& a, const Value& b);
  Value Repeat(const Value& sequence, Integer count);
  Value Arithmetic(const std::string& op, const Value& a, const Value& b);
  Value IntegerArithmetic(const std::string& op, Integer a, Integer b);
  Value FloatArithmetic(const std::string& op, double a, double b);
  std::optional<bool> Contains(const Value& container, const Value& item);
  void AppendRepr(const Value& value, TaintedText* out);
  Value LoopAttribute(const std::shared_ptr<Loop>& loop, const std::string& name);

  const RenderOptions& options_;
  std::optional<TemplateError> error_;
  int line_ = 0;
  int64_t steps_ = 0;
  int64_t bytes_ = 0;
  int frames_ = 0;  // of the C++ stack
  int calls_ = 0;   // of macros and recursive loops
  // What may hold itself; emptied at the end.
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Value>> held_;
  std::vector<ScopePtr> captured_;
};

}  // namespace tandem::chat_template
