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
#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

// Control pieces are found here, what lies between them is encoded by the library.
class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model, const TokenizerSpec& spec)
      : model_(std::move(model)) {
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
      std::vector<int> part;
      std::string error;
      if (!model_->Encode(text.substr(piece.begin, piece.end - piece.begin), &part, &error)) {
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
  AddedTokenMatcher control_;
  bool add_bos_ = true;
  bool add_eos_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildSentencePiece(const TokenizerSpec& spec) {
  std::string error;
  auto model = SentencePieceModel::Load(spec.file, &error);
  if (model == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("sentencepiece model: ", error));
  }
  return std::make_unique<SentencePieceTokenizer>(std::move(model), spec);
}

}  // namespace tandem::tokenizer
