#pragma once

#include "absl/status/status.h"
#include "common/structured_output/json_rules.h"

namespace tandem::structured_output {

// Checks the keywords of one schema object (not of those inside it): the type of each value, and
// that none stands there which we would have to pass over although it says something.
// InvalidArgument or Unimplemented name the keyword.
absl::Status CheckKeywords(const Json& schema);

}  // namespace tandem::structured_output
