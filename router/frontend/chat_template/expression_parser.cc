#include "router/frontend/chat_template/expression_parser.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "common/base/strings.h"
#include "router/frontend/chat_template/errors.h"

namespace tandem::chat_template {
namespace {

using Kind = Expression::Kind;

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "end of template";
    case TokenKind::kPrintEnd:
      return "end of print statement";
    case TokenKind::kStatementEnd:
      return "end of statement block";
    case TokenKind::kPrintBegin:
      return "begin of print statement";
    case TokenKind::kStatementBegin:
      return "begin of statement block";
    case TokenKind::kText:
      return "template data";
    default:
      return token.value;
  }
}

// Binary operators by level, loosest first; ~ lies between the two.
constexpr std::array<std::string_view, 2> kSums = {"+", "-"};
constexpr std::array<std::string_view, 4> kProducts = {"*", "/", "//", "%"};

}  // namespace

Token ExpressionParser::Take() {
  Token token = Current();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::IsOperator(std::string_view value) const {
  return Is(TokenKind::kOperator) && Current().value == value;
}

bool ExpressionParser::IsName(std::string_view value) const {
  return Is(TokenKind::kName) && Current().value == value;
}

bool ExpressionParser::SkipOperator(std::string_view value) {
  const bool found = IsOperator(value);
  if (found) Take();
  return found;
}

bool ExpressionParser::SkipName(std::string_view value) {
  const bool found = IsName(value);
  if (found) Take();
  return found;
}

bool ExpressionParser::HasName(size_t begin, std::string_view name) const {
  return std::any_of(tokens_.begin() + static_cast<std::ptrdiff_t>(begin),
                     tokens_.begin() + static_cast<std::ptrdiff_t>(at_), [&](const Token& token) {
                       return token.kind == TokenKind::kName && token.value == name;
                     });
}

std::nullptr_t ExpressionParser::Fail(std::string message) {
  if (status_.ok()) status_ = SyntaxError(std::move(message), Current().line);
  return nullptr;
}

bool ExpressionParser::ExpectOperator(std::string_view value) {
  if (failed() || SkipOperator(value)) return !failed();
  Fail(base::StrCat("expected token '", value, "', got '", Describe(Current()), "'"));
  return false;
}

bool ExpressionParser::Expect(TokenKind kind) {
  if (failed()) return false;
  if (Is(kind)) {
    Take();
    return true;
  }
  Token wanted;
  wanted.kind = kind;
  if (Is(TokenKind::kEnd)) {
    Fail(base::StrCat("unexpected end of template, expected '", Describe(wanted), "'."));
  } else {
    Fail(base::StrCat("expected token '", Describe(wanted), "', got '", Describe(Current()), "'"));
  }
  return false;
}

std::string ExpressionParser::ExpectName() {
  if (failed()) return "";
  if (Is(TokenKind::kName)) return Take().value;
  Fail(base::StrCat("expected token 'name', got '", Describe(Current()), "'"));
  return "";
}

bool ExpressionParser::Enter() {
  if (failed()) return false;
  if (++depth_ > kMaxDepth) {
    Fail(base::StrCat("nested deeper than ", kMaxDepth));
    return false;
  }
  return true;
}

ExpressionPtr ExpressionParser::Make(Kind kind) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = Current().line;
  return node;
}

ExpressionPtr ExpressionParser::Parse(bool conditional) {
  if (!Enter()) return nullptr;
  ExpressionPtr node = conditional ? ParseConditional() : ParseOr();
  Leave();
  return failed() ? nullptr : std::move(node);
}

ExpressionPtr ExpressionParser::ParseConditional() {
  ExpressionPtr node = ParseOr();
  while (!failed() && IsName("if")) {
    ExpressionPtr outer = Make(Kind::kConditional);
    Take();
    outer->children.push_back(std::move(node));
    outer->children.push_back(ParseOr());
    outer->children.push_back(SkipName("else") ? Parse() : nullptr);
    node = std::move(outer);
  }
  return node;
}

ExpressionPtr ExpressionParser::ParseOr() {
  ExpressionPtr node = ParseAnd();
  while (!failed() && IsName("or")) {
    ExpressionPtr outer = Make(Kind::kOr);
    Take();
    outer->children.push_back(std::move(node));
    outer->children.push_back(ParseAnd());
    node = std::move(outer);
  }
  return node;
}

ExpressionPtr ExpressionParser::ParseAnd() {
  ExpressionPtr node = ParseNot();
  while (!failed() && IsName("and")) {
    ExpressionPtr outer = Make(Kind::kAnd);
    Take();
    outer->children.push_back(std::move(node));
    outer->children.push_back(ParseNot());
    node = std::move(outer);
  }
  return node;
}

ExpressionPtr ExpressionParser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  if (!Enter()) return nullptr;
  ExpressionPtr node = Make(Kind::kUnary);
  node->name = Take().value;
  node->children.push_back(ParseNot());
  Leave();
  return node;
}

ExpressionPtr ExpressionParser::ParseCompare() {
  ExpressionPtr node = Make(Kind::kCompare);
  node->children.push_back(ParseBinary(0));
  while (!failed()) {
    const std::string& value = Current().value;
    if (Is(TokenKind::kOperator) && (value == "==" || value == "!=" || value == "<" ||
                                     value == "<=" || value == ">" || value == ">=")) {
      node->operators.push_back(Take().value);
    } else if (SkipName("in")) {
      node->operators.emplace_back("in");
    } else if (IsName("not") && Ahead(1).kind == TokenKind::kName && Ahead(1).value == "in") {
      Take();
      Take();
      node->operators.emplace_back("not in");
    } else {
      break;
    }
    node->children.push_back(ParseBinary(0));
  }
  return node->operators.empty() ? std::move(node->children[0]) : std::move(node);
}

// Level 0: sums of concatenations; 1: products of powers; 2: powers (from left to right, as in
// Jinja).
ExpressionPtr ExpressionParser::ParseBinary(int level) {
  const auto operand = [&] {
    return level == 0 ? ParseConcatenate() : level == 1 ? ParseBinary(2) : ParseUnary(true);
  };
  const auto is_operator = [&] {
    if (!Is(TokenKind::kOperator)) return false;
    const std::string_view value = Current().value;
    if (level == 0) return std::find(kSums.begin(), kSums.end(), value) != kSums.end();
    if (level == 1) return std::find(kProducts.begin(), kProducts.end(), value) != kProducts.end();
    return value == "**";
  };
  ExpressionPtr node = operand();
  int count = 0;
  while (!failed() && is_operator()) {
    if (++count > kMaxDepth * 10) return Fail("too many operators in one expression");
    ExpressionPtr outer = Make(Kind::kBinary);
    outer->name = Take().value;
    outer->children.push_back(std::move(node));
    outer->children.push_back(operand());
    node = std::move(outer);
  }
  return node;
}

ExpressionPtr ExpressionParser::ParseConcatenate() {
  ExpressionPtr node = ParseBinary(1);
  if (failed() || !IsOperator("~")) return node;
  ExpressionPtr outer = Make(Kind::kConcatenate);
  outer->children.push_back(std::move(node));
  while (!failed() && SkipOperator("~")) outer->children.push_back(ParseBinary(1));
  return outer;
}

ExpressionPtr ExpressionParser::ParseUnary(bool with_filters) {
  if (!Enter()) return nullptr;
  ExpressionPtr node;
  if (IsOperator("-") || IsOperator("+")) {
    node = Make(Kind::kUnary);
    node->name = Take().value;
    node->children.push_back(ParseUnary(false));
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  if (with_filters) node = ParseFilterTail(std::move(node));
  Leave();
  return failed() ? nullptr : std::move(node);
}

ExpressionPtr ExpressionParser::ParsePrimary() {
  if (failed()) return nullptr;
  switch (Current().kind) {
    case TokenKind::kName:
      return ParseNameOrConstant();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return ParseNumber();
    case TokenKind::kString: {
      ExpressionPtr node = Make(Kind::kConstant);
      std::string text;
      while (Is(TokenKind::kString)) text += Take().value;
      node->constant = Value::Trusted(text);
      return node;
    }
    case TokenKind::kOperator:
      if (IsOperator("(")) return ParseParentheses();
      if (IsOperator("[")) return ParseList();
      if (IsOperator("{")) return ParseDict();
      [[fallthrough]];
    default:
      return Fail(base::StrCat("unexpected '", Describe(Current()), "'"));
  }
}

ExpressionPtr ExpressionParser::ParseNameOrConstant() {
  ExpressionPtr node = Make(Kind::kConstant);
  const Token token = Take();
  const std::string_view name = token.value;
  if (name == "true" || name == "True") {
    node->constant = Value::Of(true);
  } else if (name == "false" || name == "False") {
    node->constant = Value::Of(false);
  } else if (name == "none" || name == "None") {
    node->constant = Value::None();
  } else {
    node->kind = Kind::kName;
    node->name = token.value;
  }
  return node;
}

ExpressionPtr ExpressionParser::ParseNumber() {
  ExpressionPtr node = Make(Kind::kConstant);
  const Token token = Take();
  const std::string& text = token.value;
  if (token.kind == TokenKind::kFloat) {
    node->constant = Value::Of(std::strtod(text.c_str(), nullptr));
    return node;
  }
  const bool has_base = text.size() > 2 && text[0] == '0' && text[1] >= 'a';
  const int base = !has_base ? 10 : text[1] == 'x' ? 16 : text[1] == 'o' ? 8 : 2;
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data() + (has_base ? 2 : 0), end, value, base);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return Fail(base::StrCat("bad or too large integer ", text));
  }
  node->constant = Value::Of(value);
  return node;
}

ExpressionPtr ExpressionParser::ParseParentheses() {
  Take();
  if (IsOperator(")")) {
    ExpressionPtr node = Make(Kind::kTuple);
    Take();
    return node;
  }
  ExpressionPtr node = ParseTuple(true);
  ExpectOperator(")");
  return node;
}

ExpressionPtr ExpressionParser::ParseTuple(bool conditional, std::string_view end_name) {
  ExpressionPtr node = Make(Kind::kTuple);
  bool is_tuple = false;
  while (!failed()) {
    if (!node->children.empty() && !ExpectOperator(",")) break;
    if (Is(TokenKind::kPrintEnd) || Is(TokenKind::kStatementEnd) || IsOperator(")") ||
        (!end_name.empty() && IsName(end_name))) {
      break;
    }
    node->children.push_back(Parse(conditional));
    if (!IsOperator(",")) break;
    is_tuple = true;
  }
  if (is_tuple || failed()) return failed() ? nullptr : std::move(node);
  if (node->children.empty()) {
    return Fail(base::StrCat("Expected an expression, got '", Describe(Current()), "'"));
  }
  return std::move(node->children[0]);
}

ExpressionPtr ExpressionParser::ParseList() {
  ExpressionPtr node = Make(Kind::kList);
  Take();
  while (!failed() && !IsOperator("]")) {
    if (!node->children.empty() && !ExpectOperator(",")) break;
    if (IsOperator("]")) break;
    node->children.push_back(Parse());
  }
  ExpectOperator("]");
  return node;
}

ExpressionPtr ExpressionParser::ParseDict() {
  ExpressionPtr node = Make(Kind::kDict);
  Take();
  while (!failed() && !IsOperator("}")) {
    if (!node->children.empty() && !ExpectOperator(",")) break;
    if (IsOperator("}")) break;
    node->children.push_back(Parse());
    if (!ExpectOperator(":")) break;
    node->children.push_back(Parse());
  }
  ExpectOperator("}");
  return node;
}

}  // namespace tandem::chat_template
