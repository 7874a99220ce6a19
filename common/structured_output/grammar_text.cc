#include "common/structured_output/grammar_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/structured_output/ebnf_writer.h"
#include "common/structured_output/json_rules.h"
#include "common/structured_output/pattern.h"
#include "common/structured_output/schema_grammar.h"

namespace tandem::structured_output {
namespace {

constexpr size_t kMaxBroadStates = 64;
constexpr int kMaxCalls = 64;

absl::StatusOr<std::string> RegexText(const std::string& pattern) {
  TANDEM_ASSIGN_OR_RETURN(const Automaton texts, CompilePattern(pattern, PatternUse::kWhole));
  if (texts.accepts_nothing()) {
    return absl::InvalidArgumentError("no text matches the regular expression");
  }
  if (BroadStates(texts) > kMaxBroadStates) {
    return absl::ResourceExhaustedError(base::StrCat("the regular expression counts more than ",
                                                     kMaxBroadStates, " characters of any kind"));
  }
  EbnfWriter writer;
  return writer.Finish(AutomatonRule(texts, TextForm::kRaw, &writer));
}

absl::StatusOr<std::string> ChoiceText(const std::vector<std::string>& choices) {
  if (choices.empty() || choices.size() > kMaxChoices) {
    return absl::InvalidArgumentError(
        base::StrCat("the list of choices must have 1 to ", kMaxChoices, " entries"));
  }
  std::vector<std::string> literals;
  for (const std::string& choice : choices) {
    literals.push_back(EbnfLiteral(choice));
  }
  return EbnfWriter().Finish(absl::StrJoin(literals, " | "));
}

std::string ObjectText() {
  EbnfWriter writer;
  const std::string space = SpaceRule(&writer);
  const std::string object = ObjectRule(&writer);
  return *writer.Finish(base::StrCat(space, " ", object, " ", space));
}

// What follows `call_begin`.
absl::StatusOr<std::string> CallRule(const Json& calls, EbnfWriter* writer) {
  const std::string space = SpaceRule(writer);
  std::vector<std::string> bodies;
  for (const Json& tool : calls["tools"]) {
    const std::string name = tool["name"].get<std::string>();
    const std::string schema = tool["parameters"].get<std::string>();
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDocument> document,
                            SchemaDocument::Parse(schema.empty() ? "{}" : schema));
    const Json object = {{"type", "object"}};
    absl::StatusOr<std::optional<std::string>> value =
        SchemaGrammar(document.get(), writer).Rule({&document->root(), &object});
    if (!value.ok()) {
      return absl::Status(value.status().code(), base::StrCat("the parameters of the tool ", name,
                                                              ": ", value.status().message()));
    }
    if (!*value) {
      return absl::InvalidArgumentError(
          base::StrCat("the parameters of the tool ", name, ": no value satisfies the schema"));
    }
    const std::string key = calls["arguments_key"].get<std::string>();
    bodies.push_back(base::StrCat("\"{\" ", space, " \"\\\"name\\\"\" ", space, " \":\" ", space,
                                  " ", ConstantBody(Json(name), writer), " ", space, " \",\" ",
                                  space, " ", ConstantBody(Json(key), writer), " ", space,
                                  " \":\" ", space, " ", **value, " ", space, " \"}\""));
  }
  return writer->Rule(base::StrCat("(", absl::StrJoin(bodies, " | "), ") ",
                                   EbnfLiteral(calls["call_end"].get<std::string>())));
}

absl::StatusOr<std::string> ToolCallsText(const std::string& text) {
  const Json calls = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool good = calls.is_object() && calls.contains("tools") && calls["tools"].is_array() &&
                    !calls["tools"].empty();
  if (!good) {
    return absl::InvalidArgumentError("there are no tools to call");
  }
  EbnfWriter writer;
  TANDEM_ASSIGN_OR_RETURN(const std::string call, CallRule(calls, &writer));
  const auto literal = [&](const char* key) { return EbnfLiteral(calls[key].get<std::string>()); };
  const std::string begin = literal("call_begin");
  if (!calls["required"].get<bool>()) {
    return writer.Finish(base::StrCat("TagDispatch((", begin, ", ", call, "))"));
  }
  const int max_calls = std::min(calls["max_calls"].get<int>(), kMaxCalls);
  std::string rest;  // up to so many further calls
  for (int i = 1; i < max_calls; ++i) {
    rest = writer.Rule(
        base::StrCat("\"\" | ", literal("separator"), " ", begin, " ", call, " ", rest));
  }
  return writer.Finish(
      base::StrCat(literal("prefix"), " ", begin, " ", call, " ", rest, " ", literal("suffix")));
}

// The library's parser of grammars recurses; what it is given must not nest without bound, and a
// number of repetitions must not be out of all proportion.
absl::StatusOr<std::string> EbnfText(const std::string& text) {
  constexpr int kMaxNesting = 64;
  constexpr int64_t kMaxNumber = 10'000;
  int depth = 0;
  char quote = 0;  // the end of the literal or set that we are in
  int64_t number = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    number =
        c >= '0' && c <= '9' && quote == 0 ? std::min(number * 10 + (c - '0'), kMaxNumber + 1) : 0;
    if (number > kMaxNumber) {
      return absl::ResourceExhaustedError(base::StrCat("a repetition is over ", kMaxNumber));
    }
    if (c == '\\') {
      ++i;
    } else if (quote != 0) {
      quote = c == quote || c == '\n' ? 0 : quote;
    } else if (c == '"' || c == '[') {
      quote = c == '[' ? ']' : c;
    } else if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '(' && ++depth > kMaxNesting) {
      return absl::ResourceExhaustedError(
          base::StrCat("it nests more than ", kMaxNesting, " parentheses"));
    } else if (c == ')') {
      --depth;
    }
  }
  return text;
}

absl::StatusOr<std::string> TextOf(const GrammarSpec& spec) {
  switch (spec.kind) {
    case GrammarSpec::Kind::kJsonObject:
      return ObjectText();
    case GrammarSpec::Kind::kJsonSchema:
      return SchemaToEbnf(spec.text);
    case GrammarSpec::Kind::kRegex:
      return RegexText(spec.text);
    case GrammarSpec::Kind::kChoice:
      return ChoiceText(spec.choices);
    case GrammarSpec::Kind::kEbnf:
      return EbnfText(spec.text);
    case GrammarSpec::Kind::kToolCalls:
      return ToolCallsText(spec.text);
  }
  return absl::InternalError("unknown kind of grammar");
}

}  // namespace

absl::StatusOr<std::string> GrammarText(const GrammarSpec& spec) {
  size_t bytes = spec.text.size();
  for (const std::string& choice : spec.choices) {
    bytes += choice.size();
  }
  if (bytes > kMaxSpecBytes) {
    return absl::ResourceExhaustedError(base::StrCat("it has more than ", kMaxSpecBytes, " bytes"));
  }
  try {
    return TextOf(spec);
  } catch (
      const Json::exception& error) {  // the library's; every value is checked before it is read
    return absl::InvalidArgumentError(base::StrCat("it cannot be read: ", error.what()));
  }
}

GrammarSpec ToolCallsSpec(const ToolCalls& calls, std::string param) {
  Json tools = Json::array();
  for (const ToolCalls::Tool& tool : calls.tools) {
    tools.push_back({{"name", tool.name}, {"parameters", tool.parameters}});
  }
  const Json text = {{"tools", tools},
                     {"prefix", calls.prefix},
                     {"call_begin", calls.call_begin},
                     {"call_end", calls.call_end},
                     {"separator", calls.separator},
                     {"suffix", calls.suffix},
                     {"arguments_key", calls.arguments_key},
                     {"max_calls", calls.max_calls},
                     {"required", calls.required}};
  GrammarSpec spec;
  spec.kind = GrammarSpec::Kind::kToolCalls;
  spec.text = text.dump(-1, ' ', false, Json::error_handler_t::replace);
  spec.param = std::move(param);
  return spec;
}

}  // namespace tandem::structured_output
