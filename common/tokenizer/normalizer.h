#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/charsmap.h"
#include "common/tokenizer/regex.h"
#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {

// One change to a text before it is cut.
struct NormalizerStep {
  enum class Kind {
    kForm,
    kReplace,
    kReplaceRegex,
    kPrepend,
    kStrip,
    kLowercase,
    kStripAccents,
    kPrecompiled
  };
  Kind kind = Kind::kForm;
  NormalForm form = NormalForm::kNfc;        // kForm
  std::string pattern;                       // kReplace
  std::string content;                       // kReplace, kReplaceRegex, kPrepend
  std::shared_ptr<const Regex> regex;        // kReplaceRegex; kPrecompiled: one grapheme
  std::shared_ptr<const CharsMap> charsmap;  // kPrecompiled
  bool left = false;                         // kStrip
  bool right = false;
};

// Applies the steps in order; valid UTF-8 in and out.
absl::StatusOr<std::string> ApplyNormalizer(const std::vector<NormalizerStep>& steps,
                                            std::string_view text);

// `text` with every `pattern` replaced by `content`.
std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace tandem::tokenizer
