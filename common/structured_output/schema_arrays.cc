#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/structured_output/schema_grammar.h"
#include "common/structured_output/schema_validator.h"

namespace tandem::structured_output {
namespace {

constexpr int64_t kMaxCountedItems = 2000;

// The parts of one schema that speak of elements.
struct ElementParts {
  const Json* prefix = nullptr;  // a list of schemas
  const Json* rest = nullptr;
};

ElementParts PartsOf(const Json& schema) {
  ElementParts parts;
  const auto items = schema.find("items");
  const auto prefix = schema.find("prefixItems");
  const auto additional = schema.find("additionalItems");
  if (items != schema.end() && items->is_array()) {  // before 2020-12
    parts.prefix = &*items;
    parts.rest = additional == schema.end() ? nullptr : &*additional;
    return parts;
  }
  parts.prefix = prefix == schema.end() ? nullptr : &*prefix;
  parts.rest = items == schema.end() ? nullptr : &*items;
  return parts;
}

struct Counts {
  int64_t min = 0;
  std::optional<int64_t> max;
  int64_t num_prefix = 0;
  bool unique = false;
};

Counts CountsOf(const Conjunction& schemas) {
  Counts counts;
  for (const Json* schema : schemas) {
    counts.min = std::max(counts.min, CountIn(*schema, "minItems", 0));
    if (schema->contains("maxItems")) {
      const int64_t own = CountIn(*schema, "maxItems", 0);
      counts.max = std::min(counts.max.value_or(own), own);
    }
    const ElementParts parts = PartsOf(*schema);
    if (parts.prefix != nullptr) {
      counts.num_prefix = std::max(counts.num_prefix, static_cast<int64_t>(parts.prefix->size()));
    }
    counts.unique = counts.unique || schema->value("uniqueItems", false);
  }
  return counts;
}

}  // namespace

absl::Status SchemaGrammar::AddArrays(const Conjunction& schemas,
                                      std::vector<std::string>* bodies) {
  Counts counts = CountsOf(schemas);
  // Rules of the elements by place; the last is for all further ones.
  std::vector<std::string> elements;
  for (int64_t i = 0; i <= counts.num_prefix && (!counts.max || i < *counts.max); ++i) {
    std::vector<const Json*> own;
    for (const Json* schema : schemas) {
      const ElementParts parts = PartsOf(*schema);
      const bool in_prefix =
          parts.prefix != nullptr && i < static_cast<int64_t>(parts.prefix->size());
      if (in_prefix) {
        own.push_back(&(*parts.prefix)[static_cast<size_t>(i)]);
      } else if (parts.rest != nullptr) {
        own.push_back(parts.rest);
      }
    }
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> rule, Rule(own));
    if (!rule) {
      counts.max = i;  // nothing can stand here
      break;
    }
    elements.push_back(*rule);
  }
  if (counts.max && *counts.max < counts.min) {
    return absl::OkStatus();
  }
  if (counts.unique && counts.max.value_or(2) > 1) {
    return UnsupportedKeyword("uniqueItems");
  }
  const int64_t counted =
      std::max({counts.max.value_or(0), counts.min, counts.max ? 0 : counts.num_prefix});
  if (counted > kMaxCountedItems) {
    return UnsupportedKeyword(counts.max ? "maxItems" : "minItems",
                              base::StrCat("over ", kMaxCountedItems));
  }
  const std::string space = SpaceRule(writer_);
  // Rule i: what may follow i elements. Without a limit the last one goes round.
  std::string after;
  const bool endless = !counts.max;
  for (int64_t i = counted; i >= 0; --i) {
    const bool is_last = i == counted;
    std::vector<std::string> ways;
    if (i >= counts.min) {
      ways.push_back("\"]\"");
    }
    const std::string name = writer_->Reserve();
    if (!is_last || endless) {
      const std::string& element = elements[std::min(static_cast<size_t>(i), elements.size() - 1)];
      const std::string comma = i == 0 ? "" : base::StrCat("\",\" ", space, " ");
      std::string next = is_last ? name : after;
      if (is_last && i == 0) {
        next = writer_->Reserve();
        writer_->Define(next,
                        base::StrCat("\"]\" | \",\" ", space, " ", element, " ", space, " ", next));
      }
      ways.push_back(base::StrCat(comma, element, " ", space, " ", next));
    }
    writer_->Define(name, absl::StrJoin(ways, " | "));
    after = name;
  }
  bodies->push_back(base::StrCat("\"[\" ", space, " ", after));
  return absl::OkStatus();
}

}  // namespace tandem::structured_output
