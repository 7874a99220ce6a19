#include <algorithm>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/patterns.h"
#include "common/tokenizer/tokenizer_json.h"

namespace tandem::tokenizer {
namespace {

constexpr int kMaxSteps = 64;  // of a normalizer or pre-tokenizer; real ones have under ten

absl::Status Missing(const char* what, const std::string& type) {
  return absl::UnimplementedError(absl::StrCat("tokenizer.json: ", what, " of type ", type));
}

absl::StatusOr<SplitBehavior> ReadBehavior(const Json& value) {
  const auto name = value.get<std::string>();
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return Missing("split behavior", name);
}

absl::Status AddSplit(const std::string& regex, SplitBehavior behavior,
                      std::vector<PreTokenizerStep>* steps) {
  PreTokenizerStep step;
  TANDEM_ASSIGN_OR_RETURN(step.regex, Regex::Compile(regex));
  step.behavior = behavior;
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ReadByteLevel(const Json& value, std::vector<PreTokenizerStep>* steps) {
  if (value.value("add_prefix_space", true)) {
    PreTokenizerStep space;
    space.kind = PreTokenizerStep::Kind::kPrefixSpace;
    steps->push_back(std::move(space));
  }
  return value.value("use_regex", true) ? AddSplit(kGpt2Pattern, SplitBehavior::kIsolated, steps)
                                        : absl::OkStatus();
}

absl::Status ReadMetaspace(const Json& value, std::vector<PreTokenizerStep>* steps) {
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kMetaspace;
  step.literal = value.at("replacement").get<std::string>();
  step.split = value.value("split", true);
  const auto scheme =
      value.value("prepend_scheme", value.value("add_prefix_space", true) ? std::string("always")
                                                                          : std::string("never"));
  step.prepend = scheme == "always"  ? PreTokenizerStep::Prepend::kAlways
                 : scheme == "first" ? PreTokenizerStep::Prepend::kFirst
                                     : PreTokenizerStep::Prepend::kNever;
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ReadSplit(const Json& value, std::vector<PreTokenizerStep>* steps) {
  PreTokenizerStep step;
  TANDEM_ASSIGN_OR_RETURN(FilePattern pattern, ReadPattern(value.at("pattern")));
  step.regex = std::move(pattern.regex);
  step.literal = std::move(pattern.literal);
  step.kind =
      step.regex ? PreTokenizerStep::Kind::kSplitRegex : PreTokenizerStep::Kind::kSplitString;
  TANDEM_ASSIGN_OR_RETURN(step.behavior, ReadBehavior(value.at("behavior")));
  step.invert = value.value("invert", false);
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status AddCharsMap(const Json& value, std::vector<NormalizerStep>* steps) {
  std::string blob;
  if (!value.is_null() && !absl::Base64Unescape(value.get<std::string>(), &blob)) {
    return absl::InvalidArgumentError("tokenizer.json: precompiled_charsmap is not base64");
  }
  TANDEM_ASSIGN_OR_RETURN(CharsMap map, CharsMap::Parse(blob));
  NormalizerStep step;
  step.kind = NormalizerStep::Kind::kPrecompiled;
  step.charsmap = std::make_shared<const CharsMap>(std::move(map));
  TANDEM_ASSIGN_OR_RETURN(step.regex, Regex::Compile("\\X"));
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FilePattern> ReadPattern(const Json& value) {
  FilePattern pattern;
  if (value.contains("String")) {
    pattern.literal = value.at("String").get<std::string>();
    if (pattern.literal.empty()) {
      return absl::InvalidArgumentError("tokenizer.json: empty pattern");
    }
    return pattern;
  }
  TANDEM_ASSIGN_OR_RETURN(pattern.regex, Regex::Compile(value.at("Regex").get<std::string>()));
  return pattern;
}

absl::Status ReadNormalizer(const Json& value, std::vector<NormalizerStep>* steps) {
  if (value.is_null()) {
    return absl::OkStatus();
  }
  const auto type = value.at("type").get<std::string>();
  if (steps->size() > kMaxSteps) {
    return absl::InvalidArgumentError("tokenizer.json: normalizer with too many steps");
  }
  NormalizerStep step;
  if (type == "Sequence") {
    for (const Json& part : value.at("normalizers")) {
      TANDEM_RETURN_IF_ERROR(ReadNormalizer(part, steps));
    }
    return absl::OkStatus();
  }
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    step.kind = NormalizerStep::Kind::kForm;
    step.form = type == "NFC"    ? NormalForm::kNfc
                : type == "NFD"  ? NormalForm::kNfd
                : type == "NFKC" ? NormalForm::kNfkc
                                 : NormalForm::kNfkd;
  } else if (type == "Prepend") {
    step.kind = NormalizerStep::Kind::kPrepend;
    step.content = value.at("prepend").get<std::string>();
  } else if (type == "Replace") {
    TANDEM_ASSIGN_OR_RETURN(FilePattern pattern, ReadPattern(value.at("pattern")));
    step.kind =
        pattern.regex ? NormalizerStep::Kind::kReplaceRegex : NormalizerStep::Kind::kReplace;
    step.regex = std::move(pattern.regex);
    step.pattern = std::move(pattern.literal);
    step.content = value.at("content").get<std::string>();
  } else if (type == "Strip") {
    step.kind = NormalizerStep::Kind::kStrip;
    step.left = value.value("strip_left", true);
    step.right = value.value("strip_right", true);
  } else if (type == "Lowercase") {
    step.kind = NormalizerStep::Kind::kLowercase;
  } else if (type == "StripAccents") {
    step.kind = NormalizerStep::Kind::kStripAccents;
  } else if (type == "Precompiled") {
    return AddCharsMap(value.value("precompiled_charsmap", Json()), steps);
  } else {
    return Missing("normalizer", type);
  }
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Json& value, std::vector<PreTokenizerStep>* steps,
                              bool* byte_level) {
  if (value.is_null()) {
    return absl::OkStatus();
  }
  const auto type = value.at("type").get<std::string>();
  if (steps->size() > kMaxSteps) {
    return absl::InvalidArgumentError("tokenizer.json: pre_tokenizer with too many steps");
  }
  if (type == "Sequence") {
    for (const Json& part : value.at("pretokenizers")) {
      TANDEM_RETURN_IF_ERROR(ReadPreTokenizer(part, steps, byte_level));
    }
    return absl::OkStatus();
  }
  if (*byte_level) {
    return Missing("pre_tokenizer after ByteLevel", type);
  }
  if (type == "ByteLevel") {
    *byte_level = true;
    return ReadByteLevel(value, steps);
  }
  if (type == "Split") return ReadSplit(value, steps);
  if (type == "Metaspace") return ReadMetaspace(value, steps);
  if (type == "Digits") {
    const bool single = value.value("individual_digits", false);
    return AddSplit(single ? R"(\p{N})" : R"(\p{N}+)", SplitBehavior::kIsolated, steps);
  }
  if (type == "Punctuation") {
    TANDEM_ASSIGN_OR_RETURN(const SplitBehavior behavior,
                            ReadBehavior(value.value("behavior", Json("Isolated"))));
    return AddSplit(R"([\p{P}$+<=>^`|~])", behavior, steps);
  }
  if (type == "WhitespaceSplit") return AddSplit(R"(\s)", SplitBehavior::kRemoved, steps);
  if (type == "Whitespace") {
    TANDEM_RETURN_IF_ERROR(AddSplit(R"([\p{L}\p{M}\p{N}\p{Pc}]+|[^\p{L}\p{M}\p{N}\p{Pc}\s]+)",
                                    SplitBehavior::kRemoved, steps));
    steps->back().invert = true;
    return absl::OkStatus();
  }
  return Missing("pre_tokenizer", type);
}

absl::Status TokenDecoder::Read(const Json& value) {
  if (value.is_null()) {
    return absl::OkStatus();
  }
  const auto type = value.at("type").get<std::string>();
  if (type == "Sequence") {
    for (const Json& part : value.at("decoders")) {
      TANDEM_RETURN_IF_ERROR(Read(part));
    }
  } else if (type == "ByteLevel") {
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Metaspace") {
    const bool prefixed = value.value("add_prefix_space", true);
    replacements_.emplace_back(value.at("replacement").get<std::string>(), " ");
    drops_first_space_ =
        value.value("prepend_scheme", std::string(prefixed ? "always" : "never")) != "never";
  } else if (type == "Replace") {
    TANDEM_ASSIGN_OR_RETURN(const FilePattern pattern, ReadPattern(value.at("pattern")));
    if (pattern.regex) {
      return Missing("decoder", "Replace with a Regex");
    }
    replacements_.emplace_back(pattern.literal, value.at("content").get<std::string>());
  } else if (type == "Strip") {
    if (value.at("content").get<std::string>() != " " || value.value("stop", 0) != 0 ||
        value.value("start", 0) > 1) {
      return Missing("decoder", "Strip of more than one space in front");
    }
    drops_first_space_ = value.value("start", 0) == 1;
  } else if (type != "Fuse") {
    return Missing("decoder", type);
  }
  return absl::OkStatus();
}

std::string TokenDecoder::BytesOf(const std::string& token) const {
  if (byte_level_) {
    return BytesOfByteLevel(token).value_or(token);
  }
  if (byte_fallback_) {
    if (const auto byte = ByteOfByteToken(token)) {
      return std::string(1, static_cast<char>(*byte));
    }
  }
  std::string bytes = token;
  for (const auto& [from, to] : replacements_) {
    bytes = ReplaceAll(bytes, from, to);
  }
  return bytes;
}

}  // namespace tandem::tokenizer
