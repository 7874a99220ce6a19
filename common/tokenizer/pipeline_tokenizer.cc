#include "common/tokenizer/pipeline_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

constexpr size_t kCachedWordBytes = 64;  // longer words hardly come again

}  // namespace

absl::Status SetEnds(const TokenizerSpec& spec, bool add_bos, bool add_eos, PipelineParts* parts) {
  for (const auto& [id, name] : {std::pair(spec.bos_id, "bos"), std::pair(spec.eos_id, "eos")}) {
    if (id && (*id < 0 || static_cast<size_t>(*id) >= parts->tokens.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.", name, "_token_id: ", *id, " is outside the vocabulary"));
    }
  }
  parts->bos_id = spec.bos_id;
  parts->eos_id = spec.eos_id;
  if (add_bos && spec.bos_id) parts->prefix_ids.push_back(*spec.bos_id);
  if (add_eos && spec.eos_id) parts->suffix_ids.push_back(*spec.eos_id);
  return absl::OkStatus();
}

void CutAtSpaces(PipelineParts* parts) {
  const std::string_view mark = kSpaceMark;
  bool has_space = false;
  for (const VocabularyToken& token : parts->tokens) {
    std::string_view text = token.text;
    has_space = has_space || text == mark;
    while (text.starts_with(mark)) text.remove_prefix(mark.size());
    if (!token.special && text.find(mark) != std::string_view::npos) {
      return;
    }
  }
  if (has_space) {
    PreTokenizerStep step;
    step.kind = PreTokenizerStep::Kind::kBeforeRuns;
    step.literal = kSpaceMark;
    parts->pre_tokenizer.push_back(std::move(step));
  }
}

PipelineTokenizer::PipelineTokenizer(PipelineParts parts)
    : normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      model_(std::move(parts.model)),
      prefix_ids_(std::move(parts.prefix_ids)),
      suffix_ids_(std::move(parts.suffix_ids)) {
  for (VocabularyToken& token : parts.tokens) {
    tokens_.push_back({std::move(token.text), std::move(token.bytes), token.special});
  }
  bos_id_ = parts.bos_id;
  eos_id_ = parts.eos_id;
  drops_first_space_ = parts.drops_first_space;
  starts_after_control_ = parts.starts_after_control;
  for (const AddedToken& token : parts.added) {
    (token.normalized ? normalized_ : raw_).Add(token);
    AddedToken own = token;
    own.content = tokens_[static_cast<size_t>(token.id)].text;
    all_raw_.Add(std::move(own));
  }
  IndexTokens();
}

std::vector<AddedTokenPiece> PipelineTokenizer::SplitRaw(std::string_view text,
                                                         const EncodeOptions& options) const {
  using Special = AddedTokenMatcher::Special;
  if (options.parse_special || options.special_ranges.empty()) {
    return raw_.Split(text, options.parse_special ? Special::kMatch : Special::kSkip);
  }
  std::vector<AddedTokenPiece> pieces;
  for (const AddedTokenPiece& piece :
       all_raw_.Split(text, Special::kOnly, options.special_ranges)) {
    if (piece.id >= 0) {
      pieces.push_back(piece);
    } else {
      raw_.SplitSection(text, {piece.begin, piece.end}, Special::kSkip, &pieces);
    }
  }
  return pieces;
}

absl::StatusOr<std::vector<int32_t>> PipelineTokenizer::Encode(std::string_view text,
                                                               const EncodeOptions& options) const {
  if (const std::optional<size_t> bad = FindInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat("text is not valid UTF-8 at byte ", *bad));
  }
  Run run;
  run.special = options.parse_special ? AddedTokenMatcher::Special::kMatch
                                      : AddedTokenMatcher::Special::kSkip;
  if (options.add_special) {
    run.ids = prefix_ids_;
  }
  for (const AddedTokenPiece& piece : SplitRaw(text, options)) {
    if (piece.id >= 0) {
      run.ids.push_back(piece.id);
    } else {
      TANDEM_RETURN_IF_ERROR(
          EncodeSection(text.substr(piece.begin, piece.end - piece.begin), piece.begin == 0, &run));
    }
  }
  if (options.add_special) {
    run.ids.insert(run.ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  }
  return std::move(run.ids);
}

absl::Status PipelineTokenizer::EncodeSection(std::string_view section, bool starts_text,
                                              Run* run) const {
  if (!normalizer_.empty()) {
    TANDEM_ASSIGN_OR_RETURN(std::string normalized, ApplyNormalizer(normalizer_, section));
    run->arena.push_back(std::move(normalized));
    section = run->arena.back();
  }
  for (const AddedTokenPiece& piece : normalized_.Split(section, run->special)) {
    if (piece.id >= 0) {
      run->ids.push_back(piece.id);
      continue;
    }
    std::vector<Word> words = {
        {section.substr(piece.begin, piece.end - piece.begin), starts_text && piece.begin == 0}};
    TANDEM_RETURN_IF_ERROR(ApplyPreTokenizer(pre_tokenizer_, &run->arena, &words));
    for (const Word& word : words) {
      EncodeWord(word.text, run);
    }
  }
  return absl::OkStatus();
}

void PipelineTokenizer::EncodeWord(std::string_view word, Run* run) const {
  if (word.size() > kCachedWordBytes) {
    model_->Encode(word, &run->ids);
    return;
  }
  const auto [it, inserted] = run->cache.try_emplace(word, run->ids.size(), 0);
  auto& [begin, count] = it->second;
  if (inserted) {
    model_->Encode(word, &run->ids);
    count = run->ids.size() - begin;
    return;
  }
  const size_t end = run->ids.size();
  run->ids.resize(end + count);
  for (size_t i = 0; i < count; ++i) {
    run->ids[end + i] = run->ids[begin + i];
  }
}

}  // namespace tandem::tokenizer
