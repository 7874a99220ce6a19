#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/structured_output/schema_grammar.h"
#include "common/structured_output/schema_validator.h"

namespace tandem::structured_output {
namespace {

constexpr size_t kMaxPatterns = 4;           // of property names, in one object
constexpr int64_t kMaxCountedMembers = 200;  // by minProperties and maxProperties
constexpr size_t kMaxBroadStates = 64;

// Property names of all schemas in the order in which they come, required ones that have no schema
// last.
std::vector<std::string> NamesOf(const Conjunction& schemas) {
  std::vector<std::string> names;
  const auto add = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  };
  for (const Json* schema : schemas) {
    const auto properties = schema->find("properties");
    if (properties != schema->end()) {
      for (const auto& [name, value] : properties->items()) {
        add(name);
      }
    }
  }
  for (const Json* schema : schemas) {
    const auto required = schema->find("required");
    if (required != schema->end()) {
      for (const Json& name : *required) {
        add(name.get<std::string>());
      }
    }
  }
  return names;
}

bool IsRequired(const Conjunction& schemas, const std::string& name) {
  for (const Json* schema : schemas) {
    const auto required = schema->find("required");
    if (required != schema->end() &&
        std::find(required->begin(), required->end(), Json(name)) != required->end()) {
      return true;
    }
  }
  return false;
}

std::vector<std::string> PatternsOf(const Conjunction& schemas) {
  std::vector<std::string> patterns;
  for (const Json* schema : schemas) {
    const auto it = schema->find("patternProperties");
    if (it == schema->end()) {
      continue;
    }
    for (const auto& [pattern, value] : it->items()) {
      if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) {
        patterns.push_back(pattern);
      }
    }
  }
  return patterns;
}

// What a member must satisfy whose name matches just the patterns chosen by `subset`.
std::vector<const Json*> ExtraSchemas(const Conjunction& schemas,
                                      const std::vector<std::string>& patterns, size_t subset) {
  std::vector<const Json*> result;
  for (const Json* schema : schemas) {
    bool found = false;
    const auto own = schema->find("patternProperties");
    for (size_t i = 0; i < patterns.size() && own != schema->end(); ++i) {
      if ((subset >> i & 1) != 0 && own->contains(patterns[i])) {
        result.push_back(&(*own)[patterns[i]]);
        found = true;
      }
    }
    const auto additional = schema->find("additionalProperties");
    if (!found && additional != schema->end()) {
      result.push_back(&*additional);
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<std::optional<Automaton>> SchemaGrammar::NamesAllowed(const Conjunction& schemas) {
  std::vector<const Json*> rules;
  for (const Json* schema : schemas) {
    const auto it = schema->find("propertyNames");
    if (it != schema->end() && *it != true) {
      rules.push_back(&*it);
    }
  }
  if (rules.empty()) {
    return std::nullopt;
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Conjunction> ways, document_->Expand(rules));
  if (ways.size() > 1) {
    return UnsupportedKeyword("propertyNames", "with alternatives");
  }
  if (ways.empty()) {
    return Automaton();
  }
  TANDEM_ASSIGN_OR_RETURN(std::optional<Automaton> allowed, TextsAllowed(ways[0]));
  Automaton names = allowed ? *std::move(allowed) : AnyText();
  for (const Json* rule : ways[0]) {
    if (rule->contains("const")) {
      return UnsupportedKeyword("propertyNames", "with `const`");
    }
    if (const auto it = rule->find("enum"); it != rule->end()) {
      std::vector<std::string> texts;
      for (const Json& text : *it) {
        texts.push_back(text.is_string() ? text.get<std::string>() : std::string());
      }
      const std::vector<std::string_view> views(texts.begin(), texts.end());
      TANDEM_ASSIGN_OR_RETURN(names, Both(names, TextsOf(views)));
    }
    if (rule->contains("minLength") || rule->contains("maxLength")) {
      const int64_t max = CountIn(*rule, "maxLength", -1);
      TANDEM_ASSIGN_OR_RETURN(
          const Automaton counted,
          TextsOfLength(CountIn(*rule, "minLength", 0),
                        max < 0 ? std::optional<int64_t>() : std::optional<int64_t>(max)));
      TANDEM_ASSIGN_OR_RETURN(names, Both(names, counted));
    }
  }
  return names;
}

// False: a required member cannot be.
absl::StatusOr<bool> SchemaGrammar::PlanMembers(const Conjunction& schemas, ObjectPlan* plan) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<Automaton> allowed, NamesAllowed(schemas));
  for (const std::string& name : NamesOf(schemas)) {
    const bool required = IsRequired(schemas, name);
    std::optional<std::string> rule;
    if (!allowed || allowed->Accepts(name)) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<const Json*> own,
                              MemberSchemas(schemas, name, document_));
      TANDEM_ASSIGN_OR_RETURN(rule, Rule(own));
    }
    if (rule) {
      plan->members.push_back({name, *rule, required});
    } else if (required) {
      return false;
    }
  }
  return true;
}

absl::Status SchemaGrammar::PlanExtras(const Conjunction& schemas, ObjectPlan* plan) {
  const std::vector<std::string> patterns = PatternsOf(schemas);
  if (patterns.size() > kMaxPatterns) {
    return UnsupportedKeyword("patternProperties",
                              base::StrCat("with more than ", kMaxPatterns, " patterns"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<Automaton> allowed, NamesAllowed(schemas));
  const std::vector<std::string> names = NamesOf(schemas);
  for (size_t subset = 0; subset < (size_t{1} << patterns.size()); ++subset) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> value,
                            Rule(ExtraSchemas(schemas, patterns, subset)));
    if (!value) {
      continue;
    }
    if (patterns.empty() && !allowed && names.empty()) {
      plan->extras.push_back({StringTailRule(writer_), *value});
      continue;
    }
    const std::vector<std::string_view> views(names.begin(), names.end());
    Automaton keys = Not(TextsOf(views));
    if (allowed) {
      TANDEM_ASSIGN_OR_RETURN(keys, Both(keys, *allowed));
    }
    for (size_t i = 0; i < patterns.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(const Automaton* pattern, document_->Pattern(patterns[i]));
      TANDEM_ASSIGN_OR_RETURN(keys, Both(keys, (subset >> i & 1) != 0 ? *pattern : Not(*pattern)));
    }
    if (keys.accepts_nothing()) {
      continue;
    }
    if (BroadStates(keys) > 4 * kMaxBroadStates) {
      return UnsupportedKeyword("additionalProperties", "beside names of this length or number");
    }
    plan->extras.push_back({AutomatonRule(keys, TextForm::kJsonString, writer_), *value});
  }
  return absl::OkStatus();
}

// False: the counts cannot be met.
absl::StatusOr<bool> SchemaGrammar::PlanCounts(const Conjunction& schemas, ObjectPlan* plan) {
  for (const Json* schema : schemas) {
    plan->min = std::max(plan->min, CountIn(*schema, "minProperties", 0));
    if (schema->contains("maxProperties")) {
      const int64_t own = CountIn(*schema, "maxProperties", 0);
      plan->max = std::min(plan->max.value_or(own), own);
    }
  }
  const auto num_members = static_cast<int64_t>(plan->members.size());
  const auto num_required = std::count_if(plan->members.begin(), plan->members.end(),
                                          [](const Member& member) { return member.required; });
  if (plan->min <= num_required) {
    plan->min = 0;
  }
  if (plan->max && plan->extras.empty() && num_members <= *plan->max) {
    plan->max.reset();
  }
  if (plan->max && (*plan->max < plan->min || *plan->max < num_required)) {
    return false;
  }
  if (plan->min > num_members + 1 || (plan->extras.empty() && plan->min > num_members)) {
    if (plan->extras.empty()) {
      return false;
    }
    // Names outside the schema may repeat, and would then count once.
    return UnsupportedKeyword("minProperties", "above the number of named properties plus one");
  }
  if (std::max(plan->min, plan->max.value_or(0)) > kMaxCountedMembers) {
    return UnsupportedKeyword(plan->max ? "maxProperties" : "minProperties",
                              base::StrCat("over ", kMaxCountedMembers));
  }
  return true;
}

// Rules by place and count: what may follow once the first `i` named members had their turn and
// `count` stand there (no more than matters). An empty name: no end can be reached from there.
std::string SchemaGrammar::WriteObject(const ObjectPlan& plan) {
  const std::string space = SpaceRule(writer_);
  const int64_t cap = std::max<int64_t>({plan.min, plan.max.value_or(0), 1});
  std::vector<std::string> after;
  for (size_t i = plan.members.size() + 1; i-- > 0;) {
    std::vector<std::string> rules(static_cast<size_t>(cap) + 1);
    for (int64_t count = cap; count >= 0; --count) {
      const std::string comma = count > 0 ? base::StrCat("\",\" ", space, " ") : "";
      const auto next = static_cast<size_t>(std::min(count + 1, cap));
      const bool has_room = !plan.max || count < *plan.max;
      const std::string name = writer_->Reserve();
      std::vector<std::string> ways;
      if (i < plan.members.size()) {
        const Member& member = plan.members[i];
        if (has_room && !after[next].empty()) {
          ways.push_back(base::StrCat(comma, ConstantBody(Json(member.name), writer_), " ", space,
                                      " \":\" ", space, " ", member.value_rule, " ", space, " ",
                                      after[next]));
        }
        if (!member.required && !after[static_cast<size_t>(count)].empty()) {
          ways.push_back(after[static_cast<size_t>(count)]);
        }
      } else {
        if (count >= plan.min) {
          ways.push_back("\"}\"");
        }
        // Members without a name in the schema count once together, as they may repeat.
        for (const Extra& extra : plan.extras) {
          if (has_room && count + 1 >= plan.min) {
            ways.push_back(base::StrCat(comma, "\"\\\"\" ", extra.key_rule, " ", space, " \":\" ",
                                        space, " ", extra.value_rule, " ", space, " ",
                                        count < cap ? rules[next] : name));
          }
        }
      }
      writer_->Define(name, ways.empty() ? "\"\"" : absl::StrJoin(ways, " | "));
      rules[static_cast<size_t>(count)] = ways.empty() ? "" : name;
    }
    after = std::move(rules);
  }
  return after[0].empty() ? "" : base::StrCat("\"{\" ", space, " ", after[0]);
}

absl::Status SchemaGrammar::AddObjects(const Conjunction& schemas,
                                       std::vector<std::string>* bodies) {
  ObjectPlan plan;
  TANDEM_ASSIGN_OR_RETURN(const bool possible, PlanMembers(schemas, &plan));
  if (!possible) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(PlanExtras(schemas, &plan));
  TANDEM_ASSIGN_OR_RETURN(const bool countable, PlanCounts(schemas, &plan));
  if (const std::string body = countable ? WriteObject(plan) : ""; !body.empty()) {
    bodies->push_back(body);
  }
  return absl::OkStatus();
}

}  // namespace tandem::structured_output
