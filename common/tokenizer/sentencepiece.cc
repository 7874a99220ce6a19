#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/builders.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pipeline_tokenizer.h"
#include "common/tokenizer/sentencepiece_model.h"
#include "common/tokenizer/sentencepiece_proto.h"
#include "common/tokenizer/sentencepiece_unigram.h"
#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

// Control pieces are found here, what lies between them is encoded by the library.
class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model,
                         std::unique_ptr<SentencePieceUnigram> unigram, const TokenizerSpec& spec)
      : model_(std::move(model)), unigram_(std::move(unigram)) {
    for (int id = 0; id < model_->size(); ++id) {
      AddPiece(id);
    }
    if (model_->bos_id() >= 0) bos_id_ = model_->bos_id();
    if (model_->eos_id() >= 0) eos_id_ = model_->eos_id();
    add_bos_ = spec.add_bos.value_or(true);
    add_eos_ = spec.add_eos.value_or(false);
    // The library does not say whether a model has the dummy prefix; it shows.
    std::vector<int> ids;
    std::string error;
    if (model_->Encode("a", &ids, &error) && !ids.empty()) {
      drops_first_space_ = model_->Piece(ids[0]).starts_with(kSpaceMark);
    }
    starts_after_control_ = true;
    IndexTokens();
  }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override {
    if (const std::optional<size_t> bad = FindInvalidUtf8(text)) {
      return absl::InvalidArgumentError(absl::StrCat("text is not valid UTF-8 at byte ", *bad));
    }
    const TextRange whole{0, text.size()};
    const std::span<const TextRange> ranges =
        options.parse_special ? std::span(&whole, 1) : options.special_ranges;
    std::vector<int32_t> ids;
    if (options.add_special && add_bos_ && bos_id_) ids.push_back(*bos_id_);
    for (const AddedTokenPiece& piece :
         control_.Split(text, AddedTokenMatcher::Special::kOnly, ranges)) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      const std::string_view section = text.substr(piece.begin, piece.end - piece.begin);
      if (unigram_ != nullptr) {
        unigram_->Encode(section, &ids);
        continue;
      }
      std::vector<int> part;
      std::string error;
      if (!model_->Encode(section, &part, &error)) {
        return absl::InternalError(absl::StrCat("sentencepiece: ", error));
      }
      ids.insert(ids.end(), part.begin(), part.end());
    }
    if (options.add_special && add_eos_ && eos_id_) ids.push_back(*eos_id_);
    return ids;
  }

 private:
  void AddPiece(int id) {
    Token token;
    token.text = model_->Piece(id);
    token.special = model_->IsControl(id) || model_->IsUnknown(id);
    if (token.special) {
      token.bytes = token.text;
      AddedToken added;
      added.id = id;
      added.content = token.text;
      added.special = true;
      control_.Add(std::move(added));
    } else if (const auto byte = ByteOfByteToken(token.text); byte && model_->IsByte(id)) {
      token.bytes = std::string(1, static_cast<char>(*byte));
    } else {
      token.bytes = ReplaceAll(token.text, kSpaceMark, " ");
    }
    tokens_.push_back(std::move(token));
  }

  std::unique_ptr<SentencePieceModel> model_;
  std::unique_ptr<SentencePieceUnigram> unigram_;  // encodes in the library's place, if there
  AddedTokenMatcher control_;
  bool add_bos_ = true;
  bool add_eos_ = false;
};

// A byte pair model without normalization (those of language models) is what a GGUF file holds of
// it, and is encoded by our own code, which is about ten times faster than the library.
std::optional<TokenizerSpec> AsGguf(const SentencePieceProto& proto, const TokenizerSpec& spec,
                                    const SentencePieceModel& model) {
  if (!proto.is_bpe || proto.space_is_suffix || !proto.charsmap.empty() ||
      proto.remove_extra_spaces || !proto.escape_spaces || !proto.byte_fallback) {
    return std::nullopt;
  }
  TokenizerSpec gguf = spec;
  gguf.kind = TokenizerSpec::Kind::kGgufSpm;
  gguf.file.clear();
  for (const SentencePieceProto::Piece& piece : proto.pieces) {
    gguf.gguf_tokens.push_back(piece.text);
    gguf.gguf_scores.push_back(piece.score);
    gguf.gguf_types.push_back(static_cast<int32_t>(piece.type));  // the same numbers
  }
  gguf.gguf_add_space_prefix = proto.add_dummy_prefix;
  gguf.bos_id = model.bos_id() >= 0 ? std::optional<int32_t>(model.bos_id()) : std::nullopt;
  gguf.eos_id = model.eos_id() >= 0 ? std::optional<int32_t>(model.eos_id()) : std::nullopt;
  gguf.unknown_id.reset();
  return gguf;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildSentencePiece(const TokenizerSpec& spec) {
  std::string error;
  auto model = SentencePieceModel::Load(spec.file, &error);
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("sentencepiece model: ", error));
  }
  TANDEM_ASSIGN_OR_RETURN(const SentencePieceProto proto, ReadSentencePieceProto(spec.file));
  if (const std::optional<TokenizerSpec> gguf = AsGguf(proto, spec, *model)) {
    return BuildGgufSpm(*gguf);
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<SentencePieceUnigram> unigram,
                          SentencePieceUnigram::Create(proto));
  return std::make_unique<SentencePieceTokenizer>(std::move(model), std::move(unigram), spec);
}

}  // namespace tandem::tokenizer
