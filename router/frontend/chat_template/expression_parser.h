#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "router/frontend/chat_template/ast.h"
#include "router/frontend/chat_template/lexer.h"

namespace tandem::chat_template {

// Tokens with a place in them, and the expressions of the language (the grammar and precedences of
// Jinja's parser). After an error everything returns null and status() says why.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Current() const { return tokens_[at_]; }
  const Token& Ahead(size_t count) const {
    return tokens_[std::min(at_ + count, tokens_.size() - 1)];
  }
  Token Take();
  bool Is(TokenKind kind) const { return Current().kind == kind; }
  bool IsOperator(std::string_view value) const;
  bool IsName(std::string_view value) const;
  bool SkipOperator(std::string_view value);
  bool SkipName(std::string_view value);
  // Moves past the token, or fails.
  bool ExpectOperator(std::string_view value);
  bool Expect(TokenKind kind);
  // The name that stands here, or "" after a failure.
  std::string ExpectName();

  size_t position() const { return at_; }
  // Whether the name occurs between `begin` and here.
  bool HasName(size_t begin, std::string_view name) const;

  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }
  std::nullptr_t Fail(std::string message);

  // With `conditional` off an `if` ends the expression.
  ExpressionPtr Parse(bool conditional = true);
  // One expression, or several with commas between: a tuple. `end_name` ends it too.
  ExpressionPtr ParseTuple(bool conditional, std::string_view end_name = {});
  // The filters of `{% filter a | b %}`; `input` may be null.
  ExpressionPtr ParseFilters(ExpressionPtr input, bool starts_with_name);
  bool ParseArguments(CallArguments* arguments);
  // For nested blocks and expressions; false, with an error, when they are too deep.
  bool Enter();
  void Leave() { --depth_; }

 private:
  // Of expressions and blocks in each other; real templates stay under 20.
  static constexpr int kMaxDepth = 100;

  ExpressionPtr Make(Expression::Kind kind) const;
  ExpressionPtr ParseConditional();
  ExpressionPtr ParseOr();
  ExpressionPtr ParseAnd();
  ExpressionPtr ParseNot();
  ExpressionPtr ParseCompare();
  ExpressionPtr ParseBinary(int level);
  ExpressionPtr ParseConcatenate();
  ExpressionPtr ParseUnary(bool with_filters);
  ExpressionPtr ParsePrimary();
  ExpressionPtr ParseNameOrConstant();
  ExpressionPtr ParseNumber();
  ExpressionPtr ParseParentheses();
  ExpressionPtr ParseList();
  ExpressionPtr ParseDict();
  ExpressionPtr ParsePostfix(ExpressionPtr node);
  ExpressionPtr ParseSubscript(ExpressionPtr node);
  ExpressionPtr ParseBracketed(ExpressionPtr node);
  ExpressionPtr ParseFilterTail(ExpressionPtr node);
  ExpressionPtr ParseFilter(ExpressionPtr node);
  ExpressionPtr ParseTest(ExpressionPtr node);
  ExpressionPtr ParseCall(ExpressionPtr node);
  std::string DottedName();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  absl::Status status_;
};

}  // namespace tandem::chat_template
