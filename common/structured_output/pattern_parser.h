#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/structured_output/automaton.h"

namespace tandem::structured_output {

struct PatternNode {
  enum class Kind { kSet, kSequence, kAlternatives, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kSequence;
  CodePointSet set;                   // kSet
  std::vector<PatternNode> children;  // one for kRepeat
  int min = 0;                        // kRepeat
  std::optional<int> max;
};

// Repetitions above this are refused.
inline constexpr int kMaxRepeat = 4000;

absl::StatusOr<PatternNode> ParsePattern(std::string_view pattern);

}  // namespace tandem::structured_output
