#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/structured_output/number_language.h"
#include "common/structured_output/schema_document.h"

namespace tandem::structured_output {

// Whether `value` satisfies `schema`. Unimplemented names a keyword that we do not know how to
// check.
absl::StatusOr<bool> Satisfies(const Json& value, const Json& schema, SchemaDocument* document);

// True: no value satisfies all of it. False: there may be one.
absl::StatusOr<bool> IsSurelyEmpty(const Conjunction& schemas, SchemaDocument* document);

// What the members of this name must satisfy.
absl::StatusOr<std::vector<const Json*>> MemberSchemas(const Conjunction& schemas,
                                                       const std::string& name,
                                                       SchemaDocument* document);

// The types that all of `schemas` allow.
absl::StatusOr<unsigned> CommonTypes(const Conjunction& schemas);
// The limits that all of `schemas` set for a number; Unimplemented where they are too intricate.
absl::StatusOr<NumberLimits> CommonLimits(const Conjunction& schemas);
bool HasNumberKeywords(const Json& schema);

// A keyword's whole number, `otherwise` where it is absent.
int64_t CountIn(const Json& schema, const char* keyword, int64_t otherwise);

}  // namespace tandem::structured_output
