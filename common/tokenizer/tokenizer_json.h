#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/tokenizer/pipeline_tokenizer.h"
#include "nlohmann/json.hpp"

namespace tandem::tokenizer {

using Json = nlohmann::json;

// Parts of a tokenizer.json. Each may throw Json::exception on a value of the wrong type, which
// BuildTokenizerJson turns into InvalidArgument; Unimplemented names a type that we do not have.

absl::Status ReadNormalizer(const Json& value, std::vector<NormalizerStep>* steps);

// `byte_level`: the words' bytes are the symbols.
absl::Status ReadPreTokenizer(const Json& value, std::vector<PreTokenizerStep>* steps,
                              bool* byte_level);

// Fills tokens (texts only) and model of `parts`. `control`: texts of control tokens, which no word
// becomes by being spelled like one.
absl::Status ReadModel(const Json& value, bool byte_level, const std::vector<std::string>& control,
                       PipelineParts* parts);

// A pattern of the file: {"String": "..."} or {"Regex": "..."}.
struct FilePattern {
  std::string literal;
  std::shared_ptr<const Regex> regex;  // null: literal
};
absl::StatusOr<FilePattern> ReadPattern(const Json& value);

// What a decoder makes of one token of the vocabulary.
class TokenDecoder {
 public:
  absl::Status Read(const Json& value);
  std::string BytesOf(const std::string& token) const;
  bool drops_first_space() const { return drops_first_space_; }

 private:
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool drops_first_space_ = false;
  std::vector<std::pair<std::string, std::string>> replacements_;
};

}  // namespace tandem::tokenizer
