// What follows a primary expression: attributes, subscripts, calls, filters, tests.
#include <string>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/expression_parser.h"

namespace tandem::chat_template {

using Kind = Expression::Kind;

ExpressionPtr ExpressionParser::ParsePostfix(ExpressionPtr node) {
  for (int count = 0; !failed(); ++count) {
    if (count > kMaxDepth) return Fail("too many subscripts in one expression");
    if (IsOperator(".") || IsOperator("[")) {
      node = ParseSubscript(std::move(node));
    } else if (IsOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

ExpressionPtr ExpressionParser::ParseSubscript(ExpressionPtr node) {
  if (IsOperator("[")) return ParseBracketed(std::move(node));
  Take();
  if (Is(TokenKind::kName)) {
    ExpressionPtr attribute = Make(Kind::kAttribute);
    attribute->name = Take().value;
    attribute->children.push_back(std::move(node));
    return attribute;
  }
  if (!Is(TokenKind::kInteger)) return Fail("expected name or number");
  ExpressionPtr subscript = Make(Kind::kSubscript);
  subscript->children.push_back(std::move(node));
  subscript->children.push_back(ParseNumber());
  return subscript;
}

ExpressionPtr ExpressionParser::ParseBracketed(ExpressionPtr node) {
  ExpressionPtr outer = Make(Kind::kSubscript);
  Take();
  outer->children.push_back(std::move(node));
  ExpressionPtr first = IsOperator(":") ? nullptr : Parse();
  if (failed()) return nullptr;
  if (!IsOperator(":")) {
    if (IsOperator(",")) {  // a[1, 2]: a tuple as the key
      ExpressionPtr tuple = Make(Kind::kTuple);
      tuple->children.push_back(std::move(first));
      while (!failed() && SkipOperator(",")) tuple->children.push_back(Parse());
      first = std::move(tuple);
    }
    outer->children.push_back(std::move(first));
    ExpectOperator("]");
    return outer;
  }
  outer->kind = Kind::kSlice;
  outer->children.push_back(std::move(first));
  for (int part = 0; part < 2; ++part) {
    if (SkipOperator(":") && !IsOperator(":") && !IsOperator("]")) {
      outer->children.push_back(Parse());
    } else {
      outer->children.push_back(nullptr);
    }
  }
  ExpectOperator("]");
  return outer;
}

ExpressionPtr ExpressionParser::ParseCall(ExpressionPtr node) {
  ExpressionPtr call = Make(Kind::kCall);
  call->children.push_back(std::move(node));
  ParseArguments(&call->arguments);
  return call;
}

bool ExpressionParser::ParseArguments(CallArguments* arguments) {
  if (!ExpectOperator("(")) return false;
  bool first = true;
  while (!failed() && !IsOperator(")")) {
    if (!first && !ExpectOperator(",")) return false;
    if (IsOperator(")")) break;
    first = false;
    if (SkipOperator("**")) {
      arguments->star_star = Parse();
    } else if (SkipOperator("*")) {
      arguments->star = Parse();
    } else if (Is(TokenKind::kName) && Ahead(1).kind == TokenKind::kOperator &&
               Ahead(1).value == "=") {
      arguments->named.emplace_back(Take().value, nullptr);
      Take();
      arguments->named.back().second = Parse();
    } else {
      if (!arguments->named.empty() || arguments->star || arguments->star_star) {
        Fail("invalid syntax for function call expression");
        return false;
      }
      arguments->positional.push_back(Parse());
    }
  }
  return ExpectOperator(")");
}

std::string ExpressionParser::DottedName() {
  std::string name = ExpectName();
  while (!failed() && IsOperator(".") && Ahead(1).kind == TokenKind::kName) {
    Take();
    name += ".";
    name += Take().value;
  }
  return name;
}

ExpressionPtr ExpressionParser::ParseFilter(ExpressionPtr node) {
  ExpressionPtr filter = Make(Kind::kFilter);
  filter->name = DottedName();
  filter->children.push_back(std::move(node));
  if (IsOperator("(")) ParseArguments(&filter->arguments);
  return filter;
}

ExpressionPtr ExpressionParser::ParseFilters(ExpressionPtr input, bool starts_with_name) {
  if (starts_with_name) input = ParseFilter(std::move(input));
  for (int count = 0; !failed() && SkipOperator("|"); ++count) {
    if (count > kMaxDepth) return Fail("too many filters in one expression");
    input = ParseFilter(std::move(input));
  }
  return input;
}

ExpressionPtr ExpressionParser::ParseFilterTail(ExpressionPtr node) {
  for (int count = 0; !failed(); ++count) {
    if (count > kMaxDepth) return Fail("too many filters in one expression");
    if (SkipOperator("|")) {
      node = ParseFilter(std::move(node));
    } else if (IsName("is")) {
      node = ParseTest(std::move(node));
    } else if (IsOperator("(")) {
      node = ParseCall(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

ExpressionPtr ExpressionParser::ParseTest(ExpressionPtr node) {
  ExpressionPtr test = Make(Kind::kTest);
  Take();
  const bool negated = SkipName("not");
  test->name = DottedName();
  test->children.push_back(std::move(node));
  if (IsOperator("(")) {
    ParseArguments(&test->arguments);
  } else if (Is(TokenKind::kString) || Is(TokenKind::kInteger) || Is(TokenKind::kFloat) ||
             IsOperator("[") || IsOperator("{") ||
             (Is(TokenKind::kName) && !IsName("else") && !IsName("or") && !IsName("and"))) {
    if (IsName("is")) return Fail("You cannot chain multiple tests with is");
    test->arguments.positional.push_back(ParsePostfix(ParsePrimary()));
  }
  if (!negated || failed()) return test;
  ExpressionPtr outer = Make(Kind::kUnary);
  outer->name = "not";
  outer->children.push_back(std::move(test));
  return outer;
}

}  // namespace tandem::chat_template
