#include "router/frontend/chat_template/parser.h"

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "router/frontend/chat_template/expression_parser.h"
#include "router/frontend/chat_template/lexer.h"

namespace tandem::chat_template {
namespace {

using Kind = Statement::Kind;
using StatementPtr = std::unique_ptr<Statement>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  absl::StatusOr<Body> Run() {
    Body body = ParseBody({});
    if (tokens_.failed()) return tokens_.status();
    return body;
  }

 private:
  // Statements up to one of the tags `ends`, whose name is left in last_end_ and taken with its
  // tag's begin. Without `ends`: up to the end of the template.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    Body body;
    if (!tokens_.Enter()) return body;
    while (!tokens_.failed()) {
      if (tokens_.Is(TokenKind::kEnd)) {
        if (ends.size() > 0) FailAtEnd(ends);
        break;
      }
      if (tokens_.Is(TokenKind::kText)) {
        auto text = Make(Kind::kText);
        text->text = tokens_.Take().value;
        body.push_back(std::move(text));
      } else if (tokens_.Is(TokenKind::kPrintBegin)) {
        auto print = Make(Kind::kPrint);
        tokens_.Take();
        print->expression = tokens_.ParseTuple(true);
        tokens_.Expect(TokenKind::kPrintEnd);
        body.push_back(std::move(print));
      } else {
        tokens_.Take();  // the begin of a statement
        if (IsOneOf(ends)) {
          last_end_ = tokens_.Take().value;
          break;
        }
        if (StatementPtr statement = ParseStatement(ends)) body.push_back(std::move(statement));
      }
    }
    tokens_.Leave();
    return body;
  }

  bool IsOneOf(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (tokens_.IsName(name)) return true;
    }
    return false;
  }

  static std::string Quoted(std::initializer_list<std::string_view> names) {
    std::string out;
    for (const std::string_view name : names) {
      base::StrAppend(&out, out.empty() ? "'" : " or '", name, "'");
    }
    return out;
  }

  void FailAtEnd(std::initializer_list<std::string_view> ends) {
    tokens_.Fail(base::StrCat(
        "Unexpected end of template. Jinja was looking for the following tags: ", Quoted(ends)));
  }

  StatementPtr Make(Kind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = tokens_.Current().line;
    return statement;
  }

  void EndTag() { tokens_.Expect(TokenKind::kStatementEnd); }

  StatementPtr ParseStatement(std::initializer_list<std::string_view> ends) {
    if (!tokens_.Is(TokenKind::kName)) return tokens_.Fail("tag name expected");
    const std::string name = tokens_.Current().value;
    if (name == "if") return ParseIf();
    if (name == "for") return ParseFor();
    if (name == "set") return ParseSet();
    if (name == "macro") return ParseMacro();
    if (name == "call") return ParseCall();
    if (name == "filter") return ParseFilterBlock();
    if (name == "with") return ParseWith();
    if (name == "generation") return ParseGeneration();
    if ((name == "break" || name == "continue") && loops_ > 0) {
      auto statement = Make(name == "break" ? Kind::kBreak : Kind::kContinue);
      tokens_.Take();
      EndTag();
      return statement;
    }
    return tokens_.Fail(base::StrCat(
        "Encountered unknown tag '", name, "'.",
        ends.size() > 0 ? " Jinja was looking for the following tags: " + Quoted(ends) + "."
                        : std::string()));
  }

  StatementPtr ParseIf() {
    tokens_.Take();
    return ParseIfTail();
  }

  // From the condition on: of an `if` or an `elif`.
  StatementPtr ParseIfTail() {
    if (!tokens_.Enter()) return nullptr;
    auto statement = Make(Kind::kIf);
    statement->expression = tokens_.ParseTuple(false);
    EndTag();
    statement->body = ParseBody({"elif", "else", "endif"});
    if (!tokens_.failed() && last_end_ == "elif") {
      if (StatementPtr nested = ParseIfTail()) statement->otherwise.push_back(std::move(nested));
    } else {
      if (!tokens_.failed() && last_end_ == "else") {
        EndTag();
        statement->otherwise = ParseBody({"endif"});
      }
      EndTag();
    }
    tokens_.Leave();
    return statement;
  }

  StatementPtr ParseFor() {
    auto statement = Make(Kind::kFor);
    tokens_.Take();
    statement->target = ParseTarget(false, "in");
    if (!tokens_.failed() && !tokens_.SkipName("in")) {
      return tokens_.Fail("expected token 'in'");
    }
    statement->expression = tokens_.ParseTuple(false, "recursive");
    if (tokens_.SkipName("if")) statement->condition = tokens_.Parse();
    statement->recursive = tokens_.SkipName("recursive");
    EndTag();
    ++loops_;
    statement->body = ParseBody({"endfor", "else"});
    --loops_;
    if (!tokens_.failed() && last_end_ == "else") {
      EndTag();
      statement->otherwise = ParseBody({"endfor"});
    }
    EndTag();
    return statement;
  }

  Target ParseOneTarget(bool with_namespace) {
    Target target;
    if (tokens_.SkipOperator("(")) {
      target = ParseTarget(with_namespace, "");
      tokens_.ExpectOperator(")");
      return target;
    }
    target.name = tokens_.ExpectName();
    if (target.name == "true" || target.name == "false" || target.name == "none" ||
        target.name == "True" || target.name == "False" || target.name == "None") {
      tokens_.Fail("can't assign to a constant");
    }
    if (with_namespace && tokens_.SkipOperator(".")) target.attribute = tokens_.ExpectName();
    return target;
  }

  Target ParseTarget(bool with_namespace, std::string_view end_name) {
    if (tokens_.Is(TokenKind::kStatementEnd)) {
      tokens_.Fail("Expected an expression, got 'end of statement block'");
      return {};
    }
    if (!tokens_.Enter()) return {};
    Target first = ParseOneTarget(with_namespace);
    if (!tokens_.failed() && tokens_.IsOperator(",")) {
      Target several;
      several.parts.push_back(std::move(first));
      while (!tokens_.failed() && tokens_.SkipOperator(",")) {
        if (tokens_.IsOperator("=") || tokens_.IsOperator(")") ||
            (!end_name.empty() && tokens_.IsName(end_name))) {
          break;
        }
        several.parts.push_back(ParseOneTarget(with_namespace));
      }
      first = std::move(several);
    }
    tokens_.Leave();
    return first;
  }

  StatementPtr ParseSet() {
    auto statement = Make(Kind::kSet);
    tokens_.Take();
    statement->target = ParseTarget(true, "");
    if (tokens_.failed()) return nullptr;
    if (tokens_.SkipOperator("=")) {
      statement->expression = tokens_.ParseTuple(true);
      EndTag();
      return statement;
    }
    statement->kind = Kind::kSetBlock;
    statement->expression = tokens_.ParseFilters(nullptr, false);
    EndTag();
    statement->body = ParseBody({"endset"});
    EndTag();
    return statement;
  }

  void ParseParameters(std::vector<Parameter>* parameters) {
    tokens_.ExpectOperator("(");
    while (!tokens_.failed() && !tokens_.IsOperator(")")) {
      if (!parameters->empty() && !tokens_.ExpectOperator(",")) return;
      if (tokens_.IsOperator(")")) break;
      Parameter parameter;
      parameter.name = tokens_.ExpectName();
      if (tokens_.SkipOperator("=")) {
        parameter.default_value = tokens_.Parse();
      } else if (!parameters->empty() && parameters->back().default_value) {
        tokens_.Fail("non-default argument follows default argument");
      }
      parameters->push_back(std::move(parameter));
    }
    tokens_.ExpectOperator(")");
  }

  StatementPtr ParseMacro() {
    auto statement = Make(Kind::kMacro);
    tokens_.Take();
    statement->name = tokens_.ExpectName();
    ParseParameters(&statement->parameters);
    EndTag();
    const size_t begin = tokens_.position();
    statement->body = ParseInFunction("endmacro");
    statement->takes_varargs = tokens_.HasName(begin, "varargs");
    statement->takes_kwargs = tokens_.HasName(begin, "kwargs");
    statement->takes_caller = tokens_.HasName(begin, "caller");
    EndTag();
    return statement;
  }

  // A function's body: the loops around it are none of its own.
  Body ParseInFunction(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = ParseBody({end});
    loops_ = loops;
    return body;
  }

  StatementPtr ParseCall() {
    auto statement = Make(Kind::kCall);
    tokens_.Take();
    if (tokens_.IsOperator("(")) ParseParameters(&statement->parameters);
    statement->expression = tokens_.Parse();
    if (tokens_.failed()) return nullptr;
    if (statement->expression->kind != Expression::Kind::kCall) {
      return tokens_.Fail("expected call");
    }
    EndTag();
    const size_t begin = tokens_.position();
    statement->body = ParseInFunction("endcall");
    statement->takes_varargs = tokens_.HasName(begin, "varargs");
    statement->takes_kwargs = tokens_.HasName(begin, "kwargs");
    EndTag();
    return statement;
  }

  StatementPtr ParseFilterBlock() {
    auto statement = Make(Kind::kFilter);
    tokens_.Take();
    statement->expression = tokens_.ParseFilters(nullptr, true);
    EndTag();
    statement->body = ParseBody({"endfilter"});
    EndTag();
    return statement;
  }

  StatementPtr ParseWith() {
    auto statement = Make(Kind::kWith);
    tokens_.Take();
    while (!tokens_.failed() && !tokens_.Is(TokenKind::kStatementEnd)) {
      if (!statement->assignments.empty() && !tokens_.ExpectOperator(",")) break;
      Target target = ParseOneTarget(false);
      tokens_.ExpectOperator("=");
      statement->assignments.emplace_back(std::move(target), tokens_.Parse());
    }
    EndTag();
    statement->body = ParseBody({"endwith"});
    EndTag();
    return statement;
  }

  // Marks what the model writes, for training; renders as its body.
  StatementPtr ParseGeneration() {
    auto statement = Make(Kind::kScope);
    tokens_.Take();
    EndTag();
    statement->body = ParseInFunction("endgeneration");
    EndTag();
    return statement;
  }

  ExpressionParser tokens_;
  std::string last_end_;
  int loops_ = 0;
};

}  // namespace

absl::StatusOr<Body> ParseTemplate(std::string_view source) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace tandem::chat_template
