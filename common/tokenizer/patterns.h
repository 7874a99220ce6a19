#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::tokenizer {

// Splitting expressions of well-known vocabularies whose files do not hold them.
extern const char kGpt2Pattern[];
extern const char kLlama3Pattern[];
extern const char kQwen2Pattern[];
extern const char kTekkenPattern[];

// What tokenizer.ggml.pre stands for: expressions applied one after the other.
struct GgufPattern {
  std::vector<std::string> splits;
  bool whole_words = false;  // a word that is a token is not cut
  bool nfc = false;          // the original tokenizer normalizes
};

// Unimplemented for a name we do not know.
absl::StatusOr<GgufPattern> PatternOfGgufPre(const std::string& pre);

}  // namespace tandem::tokenizer
