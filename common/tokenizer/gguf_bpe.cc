#include <array>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/builders.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/patterns.h"
#include "common/tokenizer/pipeline_tokenizer.h"

namespace tandem::tokenizer {
namespace {

constexpr int32_t kControl = 3;
constexpr int32_t kUserDefined = 4;

absl::StatusOr<MergeTable> ReadMerges(const std::vector<std::string>& merges, const TextToId& ids) {
  MergeTable table;
  table.Reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    const auto bad = [&](const char* why) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.merges[", rank, "] ", why, ": ", merge));
    };
    if (space == std::string::npos) {
      return bad("is no pair");
    }
    const auto left = BytesOfByteLevel(std::string_view(merge).substr(0, space));
    const auto right = BytesOfByteLevel(std::string_view(merge).substr(space + 1));
    if (!left || !right) {
      return bad("is not in the byte alphabet");
    }
    const auto left_id = ids.find(*left);
    const auto right_id = ids.find(*right);
    const auto merged_id = ids.find(*left + *right);
    if (left_id == ids.end() || right_id == ids.end() || merged_id == ids.end()) {
      return bad("names a token that is not in the vocabulary");
    }
    table.Add(left_id->second, right_id->second, static_cast<int32_t>(rank), merged_id->second);
  }
  return table;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildGgufBpe(const TokenizerSpec& spec) {
  TANDEM_ASSIGN_OR_RETURN(const GgufPattern pattern, PatternOfGgufPre(spec.gguf_pre));
  PipelineParts parts;
  TextToId ids;
  for (size_t i = 0; i < spec.gguf_tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& text = spec.gguf_tokens[i];
    const int32_t type = i < spec.gguf_types.size() ? spec.gguf_types[i] : 1;
    VocabularyToken token{text, text, type == kControl};
    if (type == kControl || type == kUserDefined) {
      AddedToken added;
      added.id = id;
      added.content = text;
      added.special = type == kControl;
      parts.added.push_back(std::move(added));
    } else if (auto bytes = BytesOfByteLevel(text)) {
      ids.emplace(*bytes, id);
      token.bytes = *std::move(bytes);
    }
    parts.tokens.push_back(std::move(token));
  }
  TANDEM_ASSIGN_OR_RETURN(MergeTable merges, ReadMerges(spec.gguf_merges, ids));
  BpeOptions options;
  options.byte_level = true;
  options.whole_words = pattern.whole_words;
  parts.model = std::make_unique<BpeModel>(options, std::move(ids), std::move(merges),
                                           std::vector<int32_t>());
  if (pattern.nfc) {
    parts.normalizer.push_back({NormalizerStep::Kind::kForm, NormalForm::kNfc});
  }
  for (const std::string& split : pattern.splits) {
    PreTokenizerStep step;
    TANDEM_ASSIGN_OR_RETURN(step.regex, Regex::Compile(split));
    parts.pre_tokenizer.push_back(std::move(step));
  }
  TANDEM_RETURN_IF_ERROR(
      SetEnds(spec, spec.add_bos.value_or(false), spec.add_eos.value_or(false), &parts));
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace tandem::tokenizer
