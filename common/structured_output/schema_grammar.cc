#include "common/structured_output/schema_grammar.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/structured_output/json_rules.h"
#include "common/structured_output/schema_validator.h"

namespace tandem::structured_output {
namespace {

constexpr int kMaxDepth = 100;
// States that take most characters; each costs a look at the whole vocabulary when compiled.
constexpr size_t kMaxBroadStates = 64;

}  // namespace

absl::StatusOr<std::optional<std::string>> SchemaGrammar::Rule(
    const std::vector<const Json*>& schemas) {
  std::vector<const Json*> key;
  for (const Json* schema : schemas) {
    const bool says_nothing = *schema == true || (schema->is_object() && schema->empty());
    if (!says_nothing && std::find(key.begin(), key.end(), schema) == key.end()) {
      key.push_back(schema);
    }
  }
  if (key.empty()) {
    return ValueRule(writer_);
  }
  const auto it = rules_.find(key);
  if (it != rules_.end()) {
    return it->second;
  }
  if (++depth_ > kMaxDepth) {
    return absl::ResourceExhaustedError("the schema is nested too deeply");
  }
  if (writer_->is_full()) {
    return absl::ResourceExhaustedError("the schema needs too large a grammar");
  }
  const std::string name = writer_->Reserve();
  rules_[key] = name;  // for schemas that use themselves
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Conjunction> ways, document_->Expand(key));
  std::vector<std::string> bodies;
  for (const Conjunction& way : ways) {
    TANDEM_RETURN_IF_ERROR(AddValues(way, &bodies));
  }
  --depth_;
  std::sort(bodies.begin(), bodies.end());
  bodies.erase(std::unique(bodies.begin(), bodies.end()), bodies.end());
  if (bodies.empty()) {
    writer_->Define(name, "\"\"");  // never used: callers hear that there is nothing
    return rules_[key] = std::nullopt;
  }
  writer_->Define(name, absl::StrJoin(bodies, " | "));
  return rules_[key] = name;
}

absl::Status SchemaGrammar::AddValues(const Conjunction& schemas,
                                      std::vector<std::string>* bodies) {
  TANDEM_ASSIGN_OR_RETURN(const bool constants, AddConstants(schemas, bodies));
  if (constants) {
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(const unsigned types, CommonTypes(schemas));
  if ((types & kNullType) != 0) {
    bodies->push_back("\"null\"");
  }
  if ((types & kBooleanType) != 0) {
    bodies->push_back("\"true\" | \"false\"");
  }
  if ((types & (kIntegerType | kFractionType)) != 0) {
    TANDEM_RETURN_IF_ERROR(AddNumbers(schemas, types, bodies));
  }
  if ((types & kStringType) != 0) {
    TANDEM_RETURN_IF_ERROR(AddStrings(schemas, bodies));
  }
  if ((types & kArrayType) != 0) {
    TANDEM_RETURN_IF_ERROR(AddArrays(schemas, bodies));
  }
  return (types & kObjectType) != 0 ? AddObjects(schemas, bodies) : absl::OkStatus();
}

// With `const` or `enum` the values are counted out; true if so.
absl::StatusOr<bool> SchemaGrammar::AddConstants(const Conjunction& schemas,
                                                 std::vector<std::string>* bodies) {
  const auto named = std::find_if(schemas.begin(), schemas.end(), [](const Json* schema) {
    return schema->contains("const") || schema->contains("enum");
  });
  if (named == schemas.end()) {
    return false;
  }
  const Json values =
      (*named)->contains("const") ? Json::array({(**named)["const"]}) : (**named)["enum"];
  for (const Json& value : values) {
    bool good = true;
    for (size_t i = 0; good && i < schemas.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(good, Satisfies(value, *schemas[i], document_));
    }
    if (good) {
      bodies->push_back(ConstantBody(value, writer_));
    }
  }
  return true;
}

absl::Status SchemaGrammar::AddNumbers(const Conjunction& schemas, unsigned types,
                                       std::vector<std::string>* bodies) {
  const bool only_integers = (types & kFractionType) == 0;
  if (std::none_of(schemas.begin(), schemas.end(),
                   [](const Json* schema) { return HasNumberKeywords(*schema); })) {
    bodies->push_back(NumberRule(only_integers, writer_));
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(NumberLimits limits, CommonLimits(schemas));
  limits.only_integers = only_integers;
  TANDEM_ASSIGN_OR_RETURN(const Automaton numbers, NumbersWithin(limits));
  if (!numbers.accepts_nothing()) {
    bodies->push_back(AutomatonRule(numbers, TextForm::kRaw, writer_));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<Automaton>> SchemaGrammar::TextsAllowed(const Conjunction& schemas) {
  std::optional<Automaton> allowed;
  const auto restrict = [&](const Automaton& texts) -> absl::Status {
    if (!allowed) {
      allowed = texts;
      return absl::OkStatus();
    }
    TANDEM_ASSIGN_OR_RETURN(allowed, Both(*allowed, texts));
    return absl::OkStatus();
  };
  for (const Json* schema : schemas) {
    if (const auto it = schema->find("pattern"); it != schema->end()) {
      TANDEM_ASSIGN_OR_RETURN(const Automaton* pattern, document_->Pattern(it->get<std::string>()));
      TANDEM_RETURN_IF_ERROR(restrict(*pattern));
    }
    if (const auto it = schema->find("format"); it != schema->end()) {
      TANDEM_ASSIGN_OR_RETURN(const Automaton* format, document_->Format(it->get<std::string>()));
      if (format != nullptr) {
        TANDEM_RETURN_IF_ERROR(restrict(*format));
      }
    }
    if (const auto it = schema->find(kNotTexts); it != schema->end() && !it->empty()) {
      std::vector<std::string> texts = it->get<std::vector<std::string>>();
      const std::vector<std::string_view> views(texts.begin(), texts.end());
      TANDEM_RETURN_IF_ERROR(restrict(Not(TextsOf(views))));
    }
  }
  return allowed;
}

absl::Status SchemaGrammar::AddStrings(const Conjunction& schemas,
                                       std::vector<std::string>* bodies) {
  int64_t min = 0;
  std::optional<int64_t> max;
  for (const Json* schema : schemas) {
    min = std::max(min, CountIn(*schema, "minLength", 0));
    if (schema->contains("maxLength")) {
      const int64_t own = CountIn(*schema, "maxLength", 0);
      max = std::min(max.value_or(own), own);
    }
  }
  TANDEM_ASSIGN_OR_RETURN(std::optional<Automaton> allowed, TextsAllowed(schemas));
  if (max && *max < min) {
    return absl::OkStatus();
  }
  if (!allowed) {
    absl::StatusOr<std::string> body = StringOfLength(min, max, writer_);
    if (!body.ok()) {
      return UnsupportedKeyword("maxLength", base::StrCat("with ", body.status().message()));
    }
    bodies->push_back(*std::move(body));
    return absl::OkStatus();
  }
  const LengthRange lengths = LengthsOf(*allowed);
  const bool is_free =
      lengths.shortest >= min && (!max || (lengths.longest && *lengths.longest <= *max));
  if (!is_free && !allowed->accepts_nothing()) {
    const absl::StatusOr<Automaton> counted = TextsOfLength(min, max);
    const absl::StatusOr<Automaton> both =
        counted.ok() ? Both(*allowed, *counted) : absl::StatusOr<Automaton>(counted.status());
    if (!both.ok()) {
      return UnsupportedKeyword(max ? "maxLength" : "minLength", "of this size with `pattern`");
    }
    allowed = *both;
  }
  if (allowed->accepts_nothing()) {
    return absl::OkStatus();
  }
  if (BroadStates(*allowed) > kMaxBroadStates) {
    return UnsupportedKeyword("pattern", "where it counts more than 64 characters of any kind");
  }
  bodies->push_back(
      base::StrCat("\"\\\"\" ", AutomatonRule(*allowed, TextForm::kJsonString, writer_)));
  return absl::OkStatus();
}

absl::StatusOr<std::string> SchemaToEbnf(std::string_view schema) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDocument> document,
                          SchemaDocument::Parse(schema));
  EbnfWriter writer;
  SchemaGrammar grammar(document.get(), &writer);
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                          grammar.Rule({&document->root()}));
  if (!value) {
    return absl::InvalidArgumentError("no value satisfies the schema");
  }
  const std::string space = SpaceRule(&writer);
  return writer.Finish(base::StrCat(space, " ", *value, " ", space));
}

}  // namespace tandem::structured_output
