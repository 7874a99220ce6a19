#include "common/structured_output/schema_validator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/structured_output/schema_keywords.h"

namespace tandem::structured_output {
namespace {

constexpr int kMaxDepth = 24;

class Validator {
 public:
  explicit Validator(SchemaDocument* document) : document_(document) {}

  absl::StatusOr<bool> Check(const Json& value, const Json& schema, int depth) {
    if (schema.is_boolean()) {
      return schema.get<bool>();
    }
    if (depth > kMaxDepth) {
      return absl::ResourceExhaustedError("the schema is nested too deeply");
    }
    TANDEM_RETURN_IF_ERROR(CheckKeywords(schema));
    TANDEM_ASSIGN_OR_RETURN(const unsigned types, TypesOf(schema));
    if ((types & TypeOf(value)) == 0 || !MatchesEnum(value, schema)) {
      return false;
    }
    TANDEM_ASSIGN_OR_RETURN(bool good, Applied(value, schema, depth));
    if (good && value.is_number()) {
      return Number(value, schema);
    }
    if (good && value.is_string()) {
      return Text(value.get<std::string>(), schema);
    }
    if (good && value.is_array()) {
      return Array(value, schema, depth);
    }
    if (good && value.is_object()) {
      return Object(value, schema, depth);
    }
    return good;
  }

 private:
  static bool MatchesEnum(const Json& value, const Json& schema) {
    if (schema.contains("const") && schema["const"] != value) {
      return false;
    }
    const auto values = schema.find("enum");
    return values == schema.end() ||
           std::find(values->begin(), values->end(), value) != values->end();
  }

  // Keywords that hold other schemas for the same value.
  absl::StatusOr<bool> Applied(const Json& value, const Json& schema, int depth) {
    if (const auto it = schema.find("$ref"); it != schema.end()) {
      TANDEM_ASSIGN_OR_RETURN(const Json* target, document_->Resolve(it->get<std::string>()));
      TANDEM_ASSIGN_OR_RETURN(const bool good, Check(value, *target, depth + 1));
      if (!good) {
        return false;
      }
    }
    for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
      const auto it = schema.find(keyword);
      if (it == schema.end()) {
        continue;
      }
      size_t held = 0;
      for (const Json& part : *it) {
        TANDEM_ASSIGN_OR_RETURN(const bool good, Check(value, part, depth + 1));
        held += good ? 1 : 0;
      }
      const bool all = keyword[0] == 'a' && keyword[1] == 'l';
      const bool any = keyword[0] == 'a' && keyword[1] == 'n';
      if (all ? held != it->size() : any ? held == 0 : held != 1) {
        return false;
      }
    }
    if (const auto it = schema.find("not"); it != schema.end()) {
      TANDEM_ASSIGN_OR_RETURN(const bool good, Check(value, *it, depth + 1));
      if (good) {
        return false;
      }
    }
    if (const auto it = schema.find("if"); it != schema.end()) {
      TANDEM_ASSIGN_OR_RETURN(const bool holds, Check(value, *it, depth + 1));
      const auto branch = schema.find(holds ? "then" : "else");
      return branch == schema.end() ? absl::StatusOr<bool>(true) : Check(value, *branch, depth + 1);
    }
    return true;
  }

  static absl::StatusOr<bool> Number(const Json& value, const Json& schema) {
    TANDEM_ASSIGN_OR_RETURN(const NumberLimits limits, CommonLimits({&schema}));
    TANDEM_ASSIGN_OR_RETURN(const Decimal number, ParseDecimal(value.dump()));
    if (limits.min) {
      const int order = Compare(number, *limits.min);
      if (order < 0 || (order == 0 && !limits.min_is_allowed)) {
        return false;
      }
    }
    if (limits.max) {
      const int order = Compare(number, *limits.max);
      if (order > 0 || (order == 0 && !limits.max_is_allowed)) {
        return false;
      }
    }
    int64_t remainder = 0;
    for (const char digit : number.integer) {
      remainder =
          limits.multiple_of > 0 ? (remainder * 10 + (digit - '0')) % limits.multiple_of : 0;
    }
    if (remainder != 0 || (limits.multiple_of > 0 && !number.fraction.empty())) {
      return false;
    }
    return limits.max_fraction_digits < 0 ||
           static_cast<int>(number.fraction.size()) <= limits.max_fraction_digits;
  }

  absl::StatusOr<bool> Text(const std::string& text, const Json& schema) {
    const auto length = static_cast<int64_t>(CodePointsOf(text).size());
    if (length < CountIn(schema, "minLength", 0) || length > CountIn(schema, "maxLength", length)) {
      return false;
    }
    if (const auto it = schema.find(kNotTexts); it != schema.end()) {
      if (std::find(it->begin(), it->end(), Json(text)) != it->end()) {
        return false;
      }
    }
    if (const auto it = schema.find("pattern"); it != schema.end()) {
      TANDEM_ASSIGN_OR_RETURN(const Automaton* pattern, document_->Pattern(it->get<std::string>()));
      if (!pattern->Accepts(text)) {
        return false;
      }
    }
    if (const auto it = schema.find("format"); it != schema.end()) {
      TANDEM_ASSIGN_OR_RETURN(const Automaton* format, document_->Format(it->get<std::string>()));
      return format == nullptr || format->Accepts(text);
    }
    return true;
  }

  absl::StatusOr<bool> Array(const Json& value, const Json& schema, int depth) {
    const auto size = static_cast<int64_t>(value.size());
    if (size < CountIn(schema, "minItems", 0) || size > CountIn(schema, "maxItems", size)) {
      return false;
    }
    for (size_t i = 0; i < value.size(); ++i) {
      const Json* element = ElementSchema(schema, i);
      if (element != nullptr) {
        TANDEM_ASSIGN_OR_RETURN(const bool good, Check(value[i], *element, depth + 1));
        if (!good) {
          return false;
        }
      }
      if (schema.value("uniqueItems", false) &&
          std::find(value.begin(), value.begin() + static_cast<ptrdiff_t>(i), value[i]) !=
              value.begin() + static_cast<ptrdiff_t>(i)) {
        return false;
      }
    }
    return true;
  }

  absl::StatusOr<bool> Object(const Json& value, const Json& schema, int depth) {
    const auto size = static_cast<int64_t>(value.size());
    if (size < CountIn(schema, "minProperties", 0) ||
        size > CountIn(schema, "maxProperties", size)) {
      return false;
    }
    if (const auto it = schema.find("required"); it != schema.end()) {
      for (const Json& name : *it) {
        if (!value.contains(name.get<std::string>())) {
          return false;
        }
      }
    }
    for (const auto& [name, member] : value.items()) {
      if (const auto it = schema.find("propertyNames"); it != schema.end()) {
        TANDEM_ASSIGN_OR_RETURN(const bool good, Check(Json(name), *it, depth + 1));
        if (!good) {
          return false;
        }
      }
      TANDEM_ASSIGN_OR_RETURN(const std::vector<const Json*> parts,
                              MemberSchemas({&schema}, name, document_));
      for (const Json* part : parts) {
        TANDEM_ASSIGN_OR_RETURN(const bool good, Check(member, *part, depth + 1));
        if (!good) {
          return false;
        }
      }
    }
    return true;
  }

  SchemaDocument* document_;

 public:
  static const Json* ElementSchema(const Json& schema, size_t index);
};

const Json* Validator::ElementSchema(const Json& schema, size_t index) {
  const auto items = schema.find("items");
  const bool old_form = items != schema.end() && items->is_array();
  const auto prefix = old_form ? items : schema.find("prefixItems");
  if (prefix != schema.end() && index < prefix->size()) {
    return &(*prefix)[index];
  }
  const auto rest = old_form ? schema.find("additionalItems") : items;
  return rest == schema.end() ? nullptr : &*rest;
}

// The bound of one keyword, if it is tighter.
absl::Status Tighten(const Json& bound, bool is_min, bool is_allowed, NumberLimits* limits) {
  TANDEM_ASSIGN_OR_RETURN(const Decimal number, ParseDecimal(bound.dump()));
  std::optional<Decimal>& known = is_min ? limits->min : limits->max;
  bool& known_allowed = is_min ? limits->min_is_allowed : limits->max_is_allowed;
  const int order = known ? Compare(number, *known) : 0;
  const bool is_tighter = !known || (is_min ? order > 0 : order < 0);
  if (is_tighter || order == 0) {
    known_allowed = is_tighter ? is_allowed : known_allowed && is_allowed;
    known = number;
  }
  return absl::OkStatus();
}

absl::Status AddMultiple(const Json& keyword, NumberLimits* limits) {
  TANDEM_ASSIGN_OR_RETURN(const Decimal step, ParseDecimal(keyword.dump()));
  if (step.fraction.empty()) {
    if (step.integer.size() > 6) {
      return UnsupportedKeyword("multipleOf", "over 999999");
    }
    const int64_t value = std::stoll(step.integer);
    limits->multiple_of = limits->multiple_of == 0 ? value : std::lcm(limits->multiple_of, value);
    return limits->multiple_of <= kMaxMultiple
               ? absl::OkStatus()
               : UnsupportedKeyword("multipleOf", base::StrCat("over ", kMaxMultiple));
  }
  const bool power_of_ten = step.integer == "0" && step.fraction.back() == '1' &&
                            step.fraction.find_first_not_of('0') == step.fraction.size() - 1;
  if (!power_of_ten) {
    return UnsupportedKeyword("multipleOf", "with a fraction that is no power of ten");
  }
  const int digits = static_cast<int>(step.fraction.size());
  limits->max_fraction_digits =
      limits->max_fraction_digits < 0 ? digits : std::min(limits->max_fraction_digits, digits);
  return absl::OkStatus();
}

}  // namespace

int64_t CountIn(const Json& schema, const char* keyword, int64_t otherwise) {
  const auto it = schema.find(keyword);
  return it == schema.end() ? otherwise : it->get<int64_t>();
}

bool HasNumberKeywords(const Json& schema) {
  for (const char* keyword :
       {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    if (schema.contains(keyword)) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<NumberLimits> CommonLimits(const Conjunction& schemas) {
  struct Bound {
    const char* keyword;
    bool is_min;
    bool is_allowed;
  };
  static constexpr Bound kBounds[] = {{"minimum", true, true},
                                      {"exclusiveMinimum", true, false},
                                      {"maximum", false, true},
                                      {"exclusiveMaximum", false, false}};
  NumberLimits limits;
  for (const Json* schema : schemas) {
    for (const Bound& bound : kBounds) {
      if (const auto it = schema->find(bound.keyword); it != schema->end()) {
        TANDEM_RETURN_IF_ERROR(Tighten(*it, bound.is_min, bound.is_allowed, &limits));
      }
    }
    if (const auto it = schema->find("multipleOf"); it != schema->end()) {
      TANDEM_RETURN_IF_ERROR(AddMultiple(*it, &limits));
    }
  }
  return limits;
}

absl::StatusOr<unsigned> CommonTypes(const Conjunction& schemas) {
  unsigned types = kAllTypes;
  for (const Json* schema : schemas) {
    TANDEM_ASSIGN_OR_RETURN(const unsigned own, TypesOf(*schema));
    types &= own;
  }
  return types;
}

absl::StatusOr<std::vector<const Json*>> MemberSchemas(const Conjunction& schemas,
                                                       const std::string& name,
                                                       SchemaDocument* document) {
  std::vector<const Json*> result;
  for (const Json* schema : schemas) {
    bool found = false;
    if (const auto it = schema->find("properties"); it != schema->end() && it->contains(name)) {
      result.push_back(&(*it)[name]);
      found = true;
    }
    if (const auto it = schema->find("patternProperties"); it != schema->end()) {
      for (const auto& [pattern, member] : it->items()) {
        TANDEM_ASSIGN_OR_RETURN(const Automaton* texts, document->Pattern(pattern));
        if (texts->Accepts(name)) {
          result.push_back(&member);
          found = true;
        }
      }
    }
    if (const auto it = schema->find("additionalProperties"); !found && it != schema->end()) {
      result.push_back(&*it);
    }
  }
  return result;
}

absl::StatusOr<bool> Satisfies(const Json& value, const Json& schema, SchemaDocument* document) {
  return Validator(document).Check(value, schema, 0);
}

absl::StatusOr<bool> IsSurelyEmpty(const Conjunction& schemas, SchemaDocument* document) {
  TANDEM_ASSIGN_OR_RETURN(const unsigned types, CommonTypes(schemas));
  if (types == 0) {
    return true;
  }
  for (const Json* schema : schemas) {
    if (!schema->contains("const") && !schema->contains("enum")) {
      continue;
    }
    const Json values =
        schema->contains("const") ? Json::array({(*schema)["const"]}) : (*schema)["enum"];
    for (const Json& value : values) {
      bool all = true;
      for (const Json* other : schemas) {
        TANDEM_ASSIGN_OR_RETURN(const bool good, Satisfies(value, *other, document));
        all = all && good;
      }
      if (all) {
        return false;
      }
    }
    return true;
  }
  if ((types & ~(kIntegerType | kFractionType)) == 0) {
    TANDEM_ASSIGN_OR_RETURN(const NumberLimits limits, CommonLimits(schemas));
    const int order = limits.min && limits.max ? Compare(*limits.min, *limits.max) : -1;
    return order > 0 || (order == 0 && !(limits.min_is_allowed && limits.max_is_allowed));
  }
  if (types != kObjectType) {
    return false;
  }
  for (const Json* schema : schemas) {
    for (const Json& name : schema->value("required", Json::array())) {
      TANDEM_ASSIGN_OR_RETURN(const std::vector<const Json*> member,
                              MemberSchemas(schemas, name.get<std::string>(), document));
      TANDEM_ASSIGN_OR_RETURN(const std::vector<Conjunction> ways, document->Expand(member));
      bool empty = true;
      for (const Conjunction& way : ways) {
        TANDEM_ASSIGN_OR_RETURN(const bool one, IsSurelyEmpty(way, document));
        empty = empty && one;
      }
      if (empty) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace tandem::structured_output
