#include "common/structured_output/schema_document.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "common/base/json_nesting.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/structured_output/pattern.h"
#include "common/structured_output/schema_keywords.h"
#include "common/structured_output/schema_validator.h"
#include "common/structured_output/text_formats.h"

namespace tandem::structured_output {
namespace {

constexpr size_t kMaxSchemaBytes = 256u << 10;
constexpr int kMaxDepth = 64;
constexpr int kMaxNesting = 200;
constexpr size_t kMaxAlternatives = 512;
constexpr int kMaxExpansions = 5000;

struct TypeName {
  std::string_view name;
  unsigned bits;
};
constexpr TypeName kTypeNames[] = {
    {"null", kNullType},       {"boolean", kBooleanType},
    {"integer", kIntegerType}, {"number", kIntegerType | kFractionType},
    {"string", kStringType},   {"array", kArrayType},
    {"object", kObjectType},
};

absl::StatusOr<unsigned> BitsOf(const Json& name) {
  for (const TypeName& type : kTypeNames) {
    if (name == type.name) {
      return type.bits;
    }
  }
  return absl::InvalidArgumentError("the schema's keyword `type` has a value that is no type");
}

Json TypeList(unsigned bits) {
  Json names = Json::array();
  for (const TypeName& type : kTypeNames) {
    if ((type.bits & bits) == type.bits && type.name != "integer") {
      names.push_back(type.name);
    }
  }
  return {{"type", names}};
}

}  // namespace

unsigned TypeOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return kNullType;
    case Json::value_t::boolean:
      return kBooleanType;
    case Json::value_t::string:
      return kStringType;
    case Json::value_t::array:
      return kArrayType;
    case Json::value_t::object:
      return kObjectType;
    case Json::value_t::number_float:
      return std::trunc(value.get<double>()) == value.get<double>() ? kIntegerType : kFractionType;
    default:
      return kIntegerType;
  }
}

absl::Status UnsupportedKeyword(std::string_view keyword, std::string_view why) {
  return absl::UnimplementedError(base::StrCat("the schema's keyword `", keyword,
                                               "` is not supported", why.empty() ? "" : " ", why));
}

absl::StatusOr<unsigned> TypesOf(const Json& schema) {
  const auto it = schema.find("type");
  if (it == schema.end()) {
    return kAllTypes;
  }
  if (!it->is_array()) {
    return BitsOf(*it);
  }
  unsigned bits = 0;
  for (const Json& name : *it) {
    TANDEM_ASSIGN_OR_RETURN(const unsigned one, BitsOf(name));
    bits |= one;
  }
  return bits;
}

absl::StatusOr<std::unique_ptr<SchemaDocument>> SchemaDocument::Parse(std::string_view text) {
  if (text.size() > kMaxSchemaBytes) {
    return absl::ResourceExhaustedError(
        base::StrCat("the schema has more than ", kMaxSchemaBytes, " bytes"));
  }
  if (base::NestsDeeperThan(text, kMaxNesting)) {
    return absl::ResourceExhaustedError("the schema is nested too deeply");
  }
  std::unique_ptr<SchemaDocument> document(new SchemaDocument());
  document->root_ = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document->root_.is_object() && !document->root_.is_boolean()) {
    return absl::InvalidArgumentError("the schema must be a JSON object, true or false");
  }
  return document;
}

absl::StatusOr<const Json*> SchemaDocument::Resolve(const std::string& reference) const {
  if (reference.empty() || reference[0] != '#') {
    return UnsupportedKeyword("$ref", base::StrCat("to another document (", reference, ")"));
  }
  const Json* target = nullptr;
  if (reference.size() == 1 || reference[1] == '/') {
    try {
      const Json::json_pointer pointer(reference.substr(1));
      target = root_.contains(pointer) ? &root_.at(pointer) : nullptr;
    } catch (const Json::exception&) {
      target = nullptr;
    }
  } else {
    return UnsupportedKeyword("$ref", "to an anchor");
  }
  if (target == nullptr || (!target->is_object() && !target->is_boolean())) {
    return absl::InvalidArgumentError(
        base::StrCat("the schema's keyword `$ref` leads to no schema: ", reference));
  }
  return target;
}

// A conjunction in the making: what holds, and the choices still open.
struct SchemaDocument::Expansion {
  bool impossible = false;
  Conjunction schemas;
  std::vector<std::vector<std::vector<const Json*>>> choices;
};

absl::Status SchemaDocument::Flatten(const Json* schema, int depth, Expansion* expansion) {
  if (depth > kMaxDepth) {
    return UnsupportedKeyword("$ref", "in a circle");
  }
  if (schema->is_boolean()) {
    expansion->impossible = expansion->impossible || !schema->get<bool>();
    return absl::OkStatus();
  }
  const auto& known = expansion->schemas;
  if (std::find(known.begin(), known.end(), schema) != known.end()) {
    return absl::OkStatus();
  }
  if (checked_.insert(schema).second) {
    TANDEM_RETURN_IF_ERROR(CheckKeywords(*schema));
  }
  expansion->schemas.push_back(schema);
  if (const auto it = schema->find("$ref"); it != schema->end()) {
    TANDEM_ASSIGN_OR_RETURN(const Json* target, Resolve(it->get<std::string>()));
    TANDEM_RETURN_IF_ERROR(Flatten(target, depth + 1, expansion));
  }
  if (const auto it = schema->find("allOf"); it != schema->end()) {
    for (const Json& part : *it) {
      TANDEM_RETURN_IF_ERROR(Flatten(&part, depth + 1, expansion));
    }
  }
  return FlattenChoices(*schema, expansion);
}

absl::Status SchemaDocument::FlattenChoices(const Json& schema, Expansion* expansion) {
  if (const auto it = schema.find("anyOf"); it != schema.end()) {
    auto& choice = expansion->choices.emplace_back();
    for (const Json& part : *it) {
      choice.push_back({&part});
    }
  }
  if (schema.contains("oneOf")) {
    TANDEM_RETURN_IF_ERROR(AddOneOf(schema, expansion));
  }
  if (const auto it = schema.find("not"); it != schema.end()) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<const Json*> negated, Negated(*it));
    auto& choice = expansion->choices.emplace_back();
    for (const Json* part : negated) {
      choice.push_back({part});
    }
  }
  if (schema.contains("if")) {
    TANDEM_RETURN_IF_ERROR(AddConditional(schema, expansion));
  }
  return AddDependencies(schema, expansion);
}

// Exactly one: at least one of branches that exclude each other.
absl::Status SchemaDocument::AddOneOf(const Json& schema, Expansion* expansion) {
  const Json& branches = schema["oneOf"];
  auto& choice = expansion->choices.emplace_back();
  for (const Json& branch : branches) {
    choice.push_back({&branch});
  }
  for (size_t i = 0; i < branches.size(); ++i) {
    for (size_t j = i + 1; j < branches.size(); ++j) {
      TANDEM_ASSIGN_OR_RETURN(const bool disjoint, AreDisjoint(branches[i], branches[j]));
      if (!disjoint) {
        return UnsupportedKeyword("oneOf", "where two branches may hold at once; use `anyOf`");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaDocument::AddConditional(const Json& schema, Expansion* expansion) {
  const Json& condition = schema["if"];
  const auto then_part = schema.find("then");
  const auto else_part = schema.find("else");
  const absl::StatusOr<std::vector<const Json*>> negated = Negated(condition);
  if (!negated.ok()) {
    return UnsupportedKeyword("if", "with this condition");
  }
  auto& choice = expansion->choices.emplace_back();
  choice.push_back({&condition});
  if (then_part != schema.end()) {
    choice.back().push_back(&*then_part);
  }
  for (const Json* part : *negated) {
    choice.push_back({part});
    if (else_part != schema.end()) {
      choice.back().push_back(&*else_part);
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaDocument::AddDependencies(const Json& schema, Expansion* expansion) {
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const auto it = schema.find(keyword);
    if (it == schema.end()) {
      continue;
    }
    if (!it->is_object()) {
      return absl::InvalidArgumentError(
          base::StrCat("the schema's keyword `", keyword, "` must be an object"));
    }
    for (const auto& [name, value] : it->items()) {
      auto& choice = expansion->choices.emplace_back();
      choice.push_back({Keep({{"properties", {{name, false}}}})});
      choice.push_back({Keep({{"type", "object"}, {"required", Json::array({name})}})});
      choice.back().push_back(value.is_array() ? Keep({{"required", value}}) : &value);
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaDocument::Multiply(Expansion expansion, size_t next, int depth,
                                      std::vector<Conjunction>* alternatives) {
  if (expansion.impossible) {
    return absl::OkStatus();
  }
  if (next == expansion.choices.size()) {
    alternatives->push_back(std::move(expansion.schemas));
    if (alternatives->size() > kMaxAlternatives) {
      return absl::ResourceExhaustedError("the schema has too many alternatives");
    }
    return absl::OkStatus();
  }
  if (depth > kMaxDepth) {
    return UnsupportedKeyword("$ref", "in a circle");
  }
  const std::vector<std::vector<const Json*>> choice = expansion.choices[next];
  for (const std::vector<const Json*>& branch : choice) {
    Expansion chosen = expansion;
    for (const Json* schema : branch) {
      TANDEM_RETURN_IF_ERROR(Flatten(schema, depth, &chosen));
    }
    TANDEM_RETURN_IF_ERROR(Multiply(std::move(chosen), next + 1, depth + 1, alternatives));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Conjunction>> SchemaDocument::Expand(
    const std::vector<const Json*>& schemas) {
  if (++expansions_ > kMaxExpansions) {
    return absl::ResourceExhaustedError("the schema is too large");
  }
  Expansion expansion;
  for (const Json* schema : schemas) {
    TANDEM_RETURN_IF_ERROR(Flatten(schema, 0, &expansion));
  }
  std::vector<Conjunction> alternatives;
  TANDEM_RETURN_IF_ERROR(Multiply(std::move(expansion), 0, 0, &alternatives));
  return alternatives;
}

absl::StatusOr<const Automaton*> SchemaDocument::Pattern(const std::string& pattern) {
  const auto it = patterns_.find(pattern);
  if (it != patterns_.end()) {
    return &it->second;
  }
  absl::StatusOr<Automaton> automaton = CompilePattern(pattern, PatternUse::kSearch);
  if (!automaton.ok()) {
    return absl::Status(automaton.status().code(),
                        base::StrCat("the schema's keyword `pattern` cannot be followed: ",
                                     automaton.status().message()));
  }
  return &patterns_.emplace(pattern, *std::move(automaton)).first->second;
}

absl::StatusOr<const Automaton*> SchemaDocument::Format(const std::string& format) {
  const TextFormat found = FindFormat(format);
  if (found.kind == FormatKind::kAnnotation) {
    return nullptr;
  }
  if (found.kind == FormatKind::kUnsupported) {
    return UnsupportedKeyword("format", base::StrCat("with the value ", format));
  }
  return Pattern(base::StrCat("^(?:", found.pattern, ")$"));
}

// Whether no value satisfies both; false also where that is not seen.
absl::StatusOr<bool> SchemaDocument::AreDisjoint(const Json& a, const Json& b) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Conjunction> both, Expand({&a, &b}));
  for (const Conjunction& together : both) {
    TANDEM_ASSIGN_OR_RETURN(const bool empty, IsSurelyEmpty(together, this));
    if (!empty) {
      return false;
    }
  }
  return true;
}

// Alternatives that together are what `schema` is not.
absl::StatusOr<std::vector<const Json*>> SchemaDocument::Negated(const Json& schema) {
  static constexpr std::string_view kUnderstood[] = {
      "type", "const", "enum", "properties", "required", "title", "description", "$comment"};
  if (schema.is_boolean()) {
    return std::vector<const Json*>{Keep(!schema.get<bool>())};
  }
  for (const auto& [keyword, value] : schema.items()) {
    if (std::find(std::begin(kUnderstood), std::end(kUnderstood), keyword) ==
        std::end(kUnderstood)) {
      return UnsupportedKeyword("not", base::StrCat("over `", keyword, "`"));
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckKeywords(schema));
  std::vector<const Json*> parts;
  TANDEM_ASSIGN_OR_RETURN(const unsigned types, TypesOf(schema));
  if ((types & kIntegerType) != 0 && (types & kFractionType) == 0) {
    return UnsupportedKeyword("not", "over the type integer");
  }
  if (types != kAllTypes) {
    parts.push_back(Keep(TypeList(kAllTypes & ~types)));
  }
  Json values = schema.contains("const") ? Json::array({schema["const"]})
                                         : schema.value("enum", Json::array());
  if (schema.contains("const") || schema.contains("enum")) {
    unsigned named = 0;
    Json texts = Json::array();
    for (const Json& value : values) {
      named |= TypeOf(value);
      if (value.is_string()) {
        texts.push_back(value);
      } else if (!value.is_boolean() && !value.is_null()) {
        return UnsupportedKeyword("not", "over `const` or `enum` with numbers or structures");
      }
    }
    parts.push_back(Keep(TypeList(kAllTypes & ~named)));
    parts.push_back(Keep({{"type", "string"}, {kNotTexts, texts}}));
    Json booleans = Json::array();
    for (const bool flag : {false, true}) {
      if ((named & kBooleanType) != 0 &&
          std::find(values.begin(), values.end(), Json(flag)) == values.end()) {
        booleans.push_back(flag);
      }
    }
    parts.push_back(Keep({{"enum", booleans}}));
  }
  for (const Json& name : schema.value("required", Json::array())) {
    parts.push_back(Keep({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}}));
  }
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [name, property] : properties.items()) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<const Json*> negated, Negated(property));
    Json choice = Json::array();
    for (const Json* part : negated) {
      choice.push_back(*part);
    }
    parts.push_back(Keep({{"type", "object"},
                          {"properties", {{name, {{"anyOf", choice}}}}},
                          {"required", Json::array({name})}}));
  }
  return parts;
}

}  // namespace tandem::structured_output
