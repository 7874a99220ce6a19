#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/structured_output/automaton.h"
#include "common/structured_output/json_rules.h"

namespace tandem::structured_output {

// The kinds of JSON values, as bits. Numbers that are integers are a kind of their own.
enum TypeBits : unsigned {
  kNullType = 1,
  kBooleanType = 2,
  kIntegerType = 4,
  kFractionType = 8,
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kAllTypes = 127,
};

unsigned TypeOf(const Json& value);

// Schemas that a value must satisfy together; each only by its own keywords, those that join or
// choose between other schemas are resolved.
using Conjunction = std::vector<const Json*>;

// One JSON schema with what is read out of it. Schemas that follow from it by rewriting live here
// as well.
class SchemaDocument {
 public:
  // InvalidArgument: no schema, or with a keyword of a wrong type; the message names it.
  static absl::StatusOr<std::unique_ptr<SchemaDocument>> Parse(std::string_view text);

  const Json& root() const { return root_; }
  // The ways in which all of `schemas` can hold: `anyOf` and the like give one each. Unimplemented
  // names a keyword that cannot be followed exactly.
  absl::StatusOr<std::vector<Conjunction>> Expand(const std::vector<const Json*>& schemas);
  // Keeps a schema made by rewriting.
  const Json* Keep(Json schema) { return &kept_.emplace_back(std::move(schema)); }
  // The texts that `pattern` (a JSON schema's), or `format`, allows.
  absl::StatusOr<const Automaton*> Pattern(const std::string& pattern);
  absl::StatusOr<const Automaton*> Format(const std::string& format);  // null: any text
  // The target of a `$ref`.
  absl::StatusOr<const Json*> Resolve(const std::string& reference) const;

 private:
  struct Expansion;
  SchemaDocument() = default;
  absl::Status Flatten(const Json* schema, int depth, Expansion* expansion);
  absl::Status FlattenChoices(const Json& schema, Expansion* expansion);
  absl::Status AddOneOf(const Json& schema, Expansion* expansion);
  absl::Status AddConditional(const Json& schema, Expansion* expansion);
  absl::Status AddDependencies(const Json& schema, Expansion* expansion);
  absl::Status Multiply(Expansion expansion, size_t next, int depth,
                        std::vector<Conjunction>* alternatives);
  absl::StatusOr<bool> AreDisjoint(const Json& a, const Json& b);
  absl::StatusOr<std::vector<const Json*>> Negated(const Json& schema);

  Json root_;
  std::deque<Json> kept_;
  std::map<std::string, Automaton> patterns_;  // their places stay
  absl::flat_hash_set<const Json*> checked_;
  int expansions_ = 0;
};

// Types that a schema's own keyword `type` allows.
absl::StatusOr<unsigned> TypesOf(const Json& schema);
// `what` of a schema cannot be followed.
absl::Status UnsupportedKeyword(std::string_view keyword, std::string_view why = "");

// A keyword of our own: texts that a string must not be.
inline constexpr char kNotTexts[] = "\x01notTexts";

}  // namespace tandem::structured_output
