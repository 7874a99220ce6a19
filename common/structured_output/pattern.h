#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/structured_output/automaton.h"

namespace tandem::structured_output {

enum class PatternUse {
  kSearch,  // the pattern may match anywhere, as JSON Schema has it
  kWhole,   // the text as a whole
};

// The texts that an ECMA-262 regular expression matches. InvalidArgument: a mistake in it;
// Unimplemented: a construct that is no regular language or not supported (named);
// ResourceExhausted: too large. \d, \w and \s mean what ECMA-262 says.
absl::StatusOr<Automaton> CompilePattern(std::string_view pattern, PatternUse use);

}  // namespace tandem::structured_output
