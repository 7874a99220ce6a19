#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/builders.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/pipeline_tokenizer.h"
#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

enum TokenType { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

// Scores say which merge goes first; merges are the pairs of symbols whose texts joined are a
// token.
class SpmMerges {
 public:
  explicit SpmMerges(const TokenizerSpec& spec) : spec_(spec) {
    std::vector<float> scores;
    for (size_t i = 0; i < spec.gguf_tokens.size(); ++i) {
      if (MergesInto(i)) {
        symbols_.emplace(spec.gguf_tokens[i], static_cast<int32_t>(i));
        scores.push_back(Score(i));
      }
    }
    std::sort(scores.begin(), scores.end(), std::greater<>());
    scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
    for (size_t rank = 0; rank < scores.size(); ++rank) {
      ranks_[scores[rank]] = static_cast<int32_t>(rank);
    }
  }

  MergeTable Build() {
    MergeTable table;
    for (size_t i = 0; i < spec_.gguf_tokens.size(); ++i) {
      if (MergesInto(i)) AddMergesOf(i, &table);
    }
    return table;
  }

  // Characters that are tokens, and those that are only parts of tokens.
  TextToId Characters() const {
    TextToId characters;
    for (const auto& [text, id] : symbols_) {
      if (static_cast<size_t>(DecodeUtf8(text, 0).bytes) == text.size()) {
        characters.emplace(text, id);
      }
    }
    return characters;
  }
  const std::vector<std::string>& bare_characters() const { return bare_characters_; }

 private:
  bool MergesInto(size_t id) const {
    const int32_t type = spec_.gguf_types[id];
    return (type == kNormal || type == kUserDefined || type == kUnused) &&
           !spec_.gguf_tokens[id].empty();
  }
  float Score(size_t id) const { return spec_.gguf_scores[id]; }

  int32_t SymbolOf(const std::string& text) {
    if (const auto it = symbols_.find(text); it != symbols_.end()) {
      return it->second;
    }
    if (static_cast<size_t>(DecodeUtf8(text, 0).bytes) != text.size()) {
      return -1;
    }
    const auto id = static_cast<int32_t>(spec_.gguf_tokens.size() + bare_characters_.size());
    bare_characters_.push_back(text);
    symbols_.emplace(text, id);
    return id;
  }

  void AddMergesOf(size_t id, MergeTable* table) {
    const std::string& text = spec_.gguf_tokens[id];
    const int32_t rank = ranks_.at(Score(id));
    for (size_t at = static_cast<size_t>(DecodeUtf8(text, 0).bytes); at < text.size();
         at += static_cast<size_t>(DecodeUtf8(text, at).bytes)) {
      const int32_t left = SymbolOf(text.substr(0, at));
      const int32_t right = left < 0 ? -1 : SymbolOf(text.substr(at));
      if (right >= 0) {
        table->Add(left, right, rank, static_cast<int32_t>(id));
      }
    }
  }

  const TokenizerSpec& spec_;
  TextToId symbols_;
  std::vector<std::string> bare_characters_;
  std::map<float, int32_t> ranks_;
};

absl::Status Validate(const TokenizerSpec& spec) {
  if (spec.gguf_scores.size() != spec.gguf_tokens.size() ||
      spec.gguf_types.size() != spec.gguf_tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml: ", spec.gguf_tokens.size(), " tokens, ",
                     spec.gguf_scores.size(), " scores, ", spec.gguf_types.size(), " token types"));
  }
  for (size_t i = 0; i < spec.gguf_tokens.size(); ++i) {
    if (FindInvalidUtf8(spec.gguf_tokens[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.tokens[", i, "] is not valid UTF-8"));
    }
    if (!(spec.gguf_scores[i] == spec.gguf_scores[i])) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.scores[", i, "] is NaN"));
    }
  }
  return absl::OkStatus();
}

void AddToken(const TokenizerSpec& spec, size_t index, PipelineParts* parts) {
  const std::string& text = spec.gguf_tokens[index];
  const int32_t type = spec.gguf_types[index];
  VocabularyToken token{text, text, type == kControl || type == kUnknown};
  if (type == kByte) {
    const auto byte = ByteOfByteToken(text);
    token.bytes = byte ? std::string(1, static_cast<char>(*byte)) : text;
  } else if (!token.special) {
    token.bytes = ReplaceAll(text, kSpaceMark, " ");
  }
  if (token.special || type == kUserDefined) {
    AddedToken added;
    added.id = static_cast<int32_t>(index);
    added.content = text;
    added.special = token.special;
    added.normalized = !token.special;  // the vocabulary spells spaces as the normalizer does
    parts->added.push_back(std::move(added));
  }
  parts->tokens.push_back(std::move(token));
}

// Ids of "<0x00>" to "<0xFF>", or none when one is missing.
std::vector<int32_t> ByteIds(const TokenizerSpec& spec) {
  std::vector<int32_t> ids(256, -1);
  for (size_t i = 0; i < spec.gguf_tokens.size(); ++i) {
    const auto byte = ByteOfByteToken(spec.gguf_tokens[i]);
    if (spec.gguf_types[i] == kByte && byte) ids[*byte] = static_cast<int32_t>(i);
  }
  return std::find(ids.begin(), ids.end(), -1) == ids.end() ? ids : std::vector<int32_t>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildGgufSpm(const TokenizerSpec& spec) {
  TANDEM_RETURN_IF_ERROR(Validate(spec));
  PipelineParts parts;
  BpeOptions options;
  options.fuse_unknown = true;
  options.unknown_id = spec.unknown_id;
  for (size_t i = 0; i < spec.gguf_tokens.size(); ++i) {
    AddToken(spec, i, &parts);
    if (spec.gguf_types[i] == kUnknown && !options.unknown_id) {
      options.unknown_id = static_cast<int32_t>(i);
    }
  }
  SpmMerges merges(spec);
  MergeTable table = merges.Build();
  options.first_bare_character = static_cast<int32_t>(spec.gguf_tokens.size());
  options.bare_characters = merges.bare_characters();
  parts.model = std::make_unique<BpeModel>(std::move(options), merges.Characters(),
                                           std::move(table), ByteIds(spec));
  if (spec.gguf_add_space_prefix) {
    NormalizerStep prepend;
    prepend.kind = NormalizerStep::Kind::kPrepend;
    prepend.content = kSpaceMark;
    parts.normalizer.push_back(std::move(prepend));
  }
  NormalizerStep spaces;
  spaces.kind = NormalizerStep::Kind::kReplace;
  spaces.pattern = " ";
  spaces.content = kSpaceMark;
  parts.normalizer.push_back(std::move(spaces));
  CutAtSpaces(&parts);
  parts.drops_first_space = spec.gguf_add_space_prefix;
  parts.starts_after_control = true;
  TANDEM_RETURN_IF_ERROR(
      SetEnds(spec, spec.add_bos.value_or(true), spec.add_eos.value_or(false), &parts));
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace tandem::tokenizer
