#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/structured_output/ebnf_writer.h"
#include "common/structured_output/number_language.h"
#include "common/structured_output/schema_document.h"

namespace tandem::structured_output {

// Writes rules for the JSON texts of values that satisfy a schema. Exact, but for the documented
// limits: members in the schema's order, bounded white space and numbers, one spelling for the
// characters of constrained strings. What cannot be exact is refused by name.
class SchemaGrammar {
 public:
  SchemaGrammar(SchemaDocument* document, EbnfWriter* writer)
      : document_(document), writer_(writer) {}

  // The name of a rule for values that satisfy all of `schemas`; none where there is no such value.
  absl::StatusOr<std::optional<std::string>> Rule(const std::vector<const Json*>& schemas);

 private:
  struct Member {
    std::string name;
    std::string value_rule;
    bool required = false;
  };
  // Members beyond the named ones.
  struct Extra {
    std::string key_rule;
    std::string value_rule;
  };
  struct ObjectPlan {
    std::vector<Member> members;
    std::vector<Extra> extras;
    int64_t min = 0;
    std::optional<int64_t> max;
  };

  // Alternatives of one conjunction are added to `bodies`.
  absl::Status AddValues(const Conjunction& schemas, std::vector<std::string>* bodies);
  absl::StatusOr<bool> AddConstants(const Conjunction& schemas, std::vector<std::string>* bodies);
  absl::Status AddNumbers(const Conjunction& schemas, unsigned types,
                          std::vector<std::string>* bodies);
  absl::Status AddStrings(const Conjunction& schemas, std::vector<std::string>* bodies);
  // The texts that a string may be, apart from its length; none: any.
  absl::StatusOr<std::optional<Automaton>> TextsAllowed(const Conjunction& schemas);

  // schema_arrays.cc
  absl::Status AddArrays(const Conjunction& schemas, std::vector<std::string>* bodies);

  // schema_objects.cc
  absl::Status AddObjects(const Conjunction& schemas, std::vector<std::string>* bodies);
  absl::StatusOr<bool> PlanMembers(const Conjunction& schemas, ObjectPlan* plan);
  absl::Status PlanExtras(const Conjunction& schemas, ObjectPlan* plan);
  absl::StatusOr<std::optional<Automaton>> NamesAllowed(const Conjunction& schemas);
  absl::StatusOr<bool> PlanCounts(const Conjunction& schemas, ObjectPlan* plan);
  std::string WriteObject(const ObjectPlan& plan);

  SchemaDocument* document_;
  EbnfWriter* writer_;
  absl::flat_hash_map<std::vector<const Json*>, std::optional<std::string>> rules_;
  int depth_ = 0;
};

// The whole grammar for one schema: `root` takes its documents with white space around.
// InvalidArgument, Unimplemented or ResourceExhausted say which keyword is to blame.
absl::StatusOr<std::string> SchemaToEbnf(std::string_view schema);

}  // namespace tandem::structured_output
