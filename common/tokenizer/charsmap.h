#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::tokenizer {

// sentencepiece's precompiled map of normalizations: a double-array trie of texts, each with what
// it becomes. Immutable.
class CharsMap {
 public:
  // An empty blob maps nothing. InvalidArgument: a broken one.
  static absl::StatusOr<CharsMap> Parse(std::string_view blob);

  struct Match {
    size_t bytes = 0;              // of the text; 0: no match
    std::string_view replacement;  // lives as long as the map
  };
  // The longest mapped text that `text` starts with.
  Match Longest(std::string_view text) const;
  // The shortest one.
  Match Shortest(std::string_view text) const;

 private:
  Match Find(std::string_view text, bool longest) const;

  std::vector<uint32_t> units_;
  std::string replacements_;  // texts, each ended by a zero byte
};

}  // namespace tandem::tokenizer
