#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/tokenizer/regex.h"

namespace tandem::tokenizer {

// What becomes of a match of a splitting expression.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// One way of cutting texts into words, inside which the vocabulary's model works.
struct PreTokenizerStep {
  enum class Kind {
    kSplitRegex,
    kSplitString,
    kPrefixSpace,  // puts a space in front of a text that has none there
    kMetaspace,    // spaces become `literal`, and one is put in front
    kBeforeRuns    // cut in front of each run of `literal`s
  };
  enum class Prepend { kAlways, kFirst, kNever };

  Kind kind = Kind::kSplitRegex;
  std::shared_ptr<const Regex> regex;  // kSplitRegex
  std::string literal;                 // kSplitString, kMetaspace, kBeforeRuns
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;                 // the matches are what lies between
  Prepend prepend = Prepend::kAlways;  // kMetaspace
  bool split = true;                   // kMetaspace: cut in front of each `literal`
};

struct Word {
  std::string_view text;
  bool starts_text = false;  // nothing of the whole text stands before it
};

// Cuts `words` further, step by step. What has to be written anew lives in `arena`.
absl::Status ApplyPreTokenizer(const std::vector<PreTokenizerStep>& steps,
                               std::deque<std::string>* arena, std::vector<Word>* words);

}  // namespace tandem::tokenizer
