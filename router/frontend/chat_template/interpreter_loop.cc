// The `for` statement and its `loop`.
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/interpreter.h"

namespace tandem::chat_template {

Interpreter::Flow Interpreter::ExecuteFor(const Statement& statement, const ScopePtr& scope,
                                          TaintedText* out) {
  const Value over = Evaluate(*statement.expression, scope);
  return failed() ? Flow::kNormal : RunLoop(statement, scope, over, 1, out);
}

std::optional<std::vector<Value>> Interpreter::Filtered(const Statement& statement,
                                                        const ScopePtr& scope,
                                                        std::vector<Value> items) {
  if (!statement.condition) return items;
  std::vector<Value> kept;
  auto inner = std::make_shared<Scope>();
  inner->parent = scope;
  for (Value& item : items) {
    Assign(statement.target, item, inner.get());
    if (failed()) return std::nullopt;
    const bool keep = Evaluate(*statement.condition, inner).Truthy();
    if (failed()) return std::nullopt;
    if (keep) kept.push_back(std::move(item));
  }
  return kept;
}

Interpreter::Flow Interpreter::RunLoop(const Statement& statement, const ScopePtr& scope,
                                       const Value& over, int depth, TaintedText* out) {
  auto all = Iterate(over);
  if (!all) return Flow::kNormal;
  auto items = Filtered(statement, scope, *std::move(all));
  if (!items) return Flow::kNormal;
  if (items->empty()) return Execute(statement.otherwise, scope, out);
  auto loop = std::make_shared<Loop>();
  const Value list = MakeList(*std::move(items));
  if (failed()) return Flow::kNormal;
  loop->items = list.shared_list();
  loop->depth = depth;
  if (statement.recursive) {
    captured_.push_back(scope);
    loop->recurse = [&statement, scope, depth](Interpreter& self, const Arguments& arguments) {
      if (arguments.positional.size() != 1) return self.FailType("loop() takes one argument");
      if (++self.calls_ > self.options_.limits.max_depth) {
        self.Fail(ErrorKind::kOther, "RecursionError: loops nested too deep");
      }
      TaintedText text;
      if (!self.failed()) {
        self.RunLoop(statement, scope, arguments.positional[0], depth + 1, &text);
      }
      --self.calls_;
      return self.failed() ? Value() : self.MakeString(std::move(text));
    };
  }
  for (size_t i = 0; i < loop->items->items.size(); ++i) {
    if (!Charge(sizeof(Scope))) return Flow::kNormal;
    loop->index = i;
    auto inner = std::make_shared<Scope>();
    inner->parent = scope;
    Assign(statement.target, loop->items->items[i], inner.get());
    inner->variables["loop"] = Value::Of(loop);
    if (failed() || Execute(statement.body, inner, out) == Flow::kBreak) break;
  }
  return Flow::kNormal;
}

Value Interpreter::LoopAttribute(const std::shared_ptr<Loop>& loop, const std::string& name) {
  const size_t count = loop->items->items.size();
  const size_t index = loop->index;
  if (name == "index") return Value::Of(index + 1);
  if (name == "index0") return Value::Of(index);
  if (name == "revindex") return Value::Of(count - index);
  if (name == "revindex0") return Value::Of(count - index - 1);
  if (name == "first") return Value::Of(index == 0);
  if (name == "last") return Value::Of(index + 1 == count);
  if (name == "length") return Value::Of(count);
  if (name == "depth") return Value::Of(loop->depth);
  if (name == "depth0") return Value::Of(loop->depth - 1);
  if (name == "previtem") {
    return index > 0 ? loop->items->items[index - 1]
                     : Value::UndefinedOf("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < count ? loop->items->items[index + 1]
                             : Value::UndefinedOf("there is no next item");
  }
  const int depth = Value::Of(loop).Depth() + 1;
  if (name == "cycle") {
    return Value::FunctionOf(
        name,
        [loop](Interpreter& self, const Arguments& arguments) {
          if (arguments.positional.empty()) return self.FailType("TypeError: no items for cycling");
          return arguments.positional[loop->index % arguments.positional.size()];
        },
        depth);
  }
  if (name == "changed") {
    return Value::FunctionOf(
        name,
        [loop](Interpreter& self, const Arguments& arguments) {
          const Value now = self.MakeList(arguments.positional, true);
          if (!loop->last_changed) {
            loop->last_changed = std::make_shared<Value>();
            self.held_.push_back(loop->last_changed);
          }
          const bool changed = !Value::Equal(*loop->last_changed, now);
          *loop->last_changed = now;
          return Value::Of(changed);
        },
        depth);
  }
  return Value::UndefinedOf(base::StrCat("'LoopContext object' has no attribute '", name, "'"));
}

}  // namespace tandem::chat_template
