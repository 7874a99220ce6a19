#include "common/structured_output/schema_keywords.h"

#include <cmath>
#include <string_view>

#include "common/base/strings.h"
#include "common/structured_output/schema_document.h"

namespace tandem::structured_output {
namespace {

enum class Shape {
  kSchema,
  kSchemas,
  kSchemaMap,
  kCount,
  kNumber,
  kPositive,
  kText,
  kTexts,
  kFlag,
  kAny,
  kNone
};

struct Keyword {
  std::string_view name;
  Shape shape;
};

// kNone: known to JSON Schema, and not followed.
constexpr Keyword kKeywords[] = {
    {"allOf", Shape::kSchemas},
    {"anyOf", Shape::kSchemas},
    {"oneOf", Shape::kSchemas},
    {"not", Shape::kSchema},
    {"if", Shape::kSchema},
    {"then", Shape::kSchema},
    {"else", Shape::kSchema},
    {"items", Shape::kAny},
    {"additionalItems", Shape::kSchema},
    {"prefixItems", Shape::kSchemas},
    {"properties", Shape::kSchemaMap},
    {"patternProperties", Shape::kSchemaMap},
    {"additionalProperties", Shape::kSchema},
    {"propertyNames", Shape::kSchema},
    {"required", Shape::kTexts},
    {"minProperties", Shape::kCount},
    {"maxProperties", Shape::kCount},
    {"minItems", Shape::kCount},
    {"maxItems", Shape::kCount},
    {"minLength", Shape::kCount},
    {"maxLength", Shape::kCount},
    {"minimum", Shape::kNumber},
    {"maximum", Shape::kNumber},
    {"exclusiveMinimum", Shape::kNumber},
    {"exclusiveMaximum", Shape::kNumber},
    {"multipleOf", Shape::kPositive},
    {"pattern", Shape::kText},
    {"format", Shape::kText},
    {"$ref", Shape::kText},
    {"uniqueItems", Shape::kFlag},
    {"dependentSchemas", Shape::kSchemaMap},
    {"contains", Shape::kNone},
    {"unevaluatedItems", Shape::kNone},
    {"unevaluatedProperties", Shape::kNone},
    {"$dynamicRef", Shape::kNone},
    {"$recursiveRef", Shape::kNone},
};

bool IsSchema(const Json& value) { return value.is_object() || value.is_boolean(); }

bool AllOf(const Json& values, bool (*check)(const Json&)) {
  for (const Json& value : values) {
    if (!check(value)) {
      return false;
    }
  }
  return true;
}

bool IsText(const Json& value) { return value.is_string(); }

bool IsCount(const Json& value) {
  const double number = value.is_number() ? value.get<double>() : -1.0;
  return number >= 0 && number < 2147483648.0 && std::trunc(number) == number;
}

// What `value` should be, or nothing where it is that.
std::string_view Expected(const Keyword& keyword, const Json& value) {
  switch (keyword.shape) {
    case Shape::kSchema:
      return IsSchema(value) ? "" : "a schema";
    case Shape::kSchemas:
      return value.is_array() && !value.empty() && AllOf(value, IsSchema) ? ""
                                                                          : "a list of schemas";
    case Shape::kSchemaMap:
      return value.is_object() && AllOf(value, IsSchema) ? "" : "an object of schemas";
    case Shape::kCount:
      return IsCount(value) ? "" : "a whole number of at least 0";
    case Shape::kNumber:
      return value.is_number() ? "" : "a number";
    case Shape::kPositive:
      return value.is_number() && value.get<double>() > 0 ? "" : "a number above 0";
    case Shape::kText:
      return value.is_string() ? "" : "a string";
    case Shape::kTexts:
      return value.is_array() && AllOf(value, IsText) ? "" : "a list of strings";
    case Shape::kFlag:
      return value.is_boolean() ? "" : "true or false";
    case Shape::kAny:
    case Shape::kNone:
      return "";
  }
  return "";
}

}  // namespace

absl::Status CheckKeywords(const Json& schema) {
  for (const Keyword& keyword : kKeywords) {
    const auto it = schema.find(keyword.name);
    if (it == schema.end()) {
      continue;
    }
    if (keyword.shape == Shape::kNone && *it != true) {
      return UnsupportedKeyword(keyword.name);
    }
    if (const std::string_view expected = Expected(keyword, *it); !expected.empty()) {
      return absl::InvalidArgumentError(
          base::StrCat("the schema's keyword `", keyword.name, "` must be ", expected));
    }
  }
  const auto items = schema.find("items");
  if (items != schema.end() && !IsSchema(*items) &&
      !(items->is_array() && AllOf(*items, IsSchema))) {
    return absl::InvalidArgumentError("the schema's keyword `items` must be a schema");
  }
  const auto values = schema.find("enum");
  if (values != schema.end() && !values->is_array()) {
    return absl::InvalidArgumentError("the schema's keyword `enum` must be a list");
  }
  return absl::OkStatus();
}

}  // namespace tandem::structured_output
