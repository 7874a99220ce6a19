#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "router/frontend/chat_template/value.h"

namespace tandem::chat_template {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  ExpressionPtr star;       // *args
  ExpressionPtr star_star;  // **kwargs
};

struct Expression {
  enum class Kind {
    kConstant,   // constant
    kName,       // name
    kList,       // children
    kTuple,      // children
    kDict,       // children: key, value, key, value ...
    kAttribute,  // child.name
    kSubscript,  // children[0][children[1]]
    kSlice,      // children[0][children[1]:children[2]:children[3]]; these may be null
    kCall,       // children[0](arguments)
    kFilter,     // children[0] | name(arguments); children[0] null: of a block
    kTest,       // children[0] is name(arguments)
    kUnary,      // name children[0]: "-", "+", "not"
    kBinary,     // children[0] name children[1]
    kAnd,
    kOr,
    kConcatenate,  // children joined with ~
    kCompare,      // children[0] operators[0] children[1] operators[1] ...
    kConditional   // children[0] if children[1] else children[2]; the latter may be null
  };

  Kind kind = Kind::kConstant;
  int line = 1;
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> children;
  std::vector<std::string> operators;
  CallArguments arguments;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

// What an assignment writes to: a name, ns.attribute, or several of them.
struct Target {
  std::string name;
  std::string attribute;  // not empty: name.attribute
  std::vector<Target> parts;
};

struct Parameter {
  std::string name;
  ExpressionPtr default_value;  // may be null
};

struct Statement {
  enum class Kind {
    kText,      // text
    kPrint,     // expression
    kIf,        // expression, body, otherwise
    kFor,       // target in expression (if condition) (recursive): body, otherwise
    kSet,       // target = expression
    kSetBlock,  // target, body, expression: filter chain or null
    kMacro,     // name, parameters, body
    kCall,      // expression is the call, parameters and body those of its caller
    kFilter,    // expression: filter chain, body
    kWith,      // assignments, body
    kScope,     // body ({% generation %})
    kBreak,
    kContinue
  };

  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  std::string name;
  Target target;
  ExpressionPtr expression;
  ExpressionPtr condition;
  bool recursive = false;
  std::vector<Parameter> parameters;
  bool takes_varargs = false;  // of a macro or caller: its body uses the name
  bool takes_kwargs = false;
  bool takes_caller = false;
  std::vector<std::pair<Target, ExpressionPtr>> assignments;
  Body body;
  Body otherwise;
};

}  // namespace tandem::chat_template
