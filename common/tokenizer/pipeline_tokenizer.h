#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::tokenizer {

// A token of a vocabulary file.
struct VocabularyToken {
  std::string text;
  std::string bytes;
  bool special = false;
};

// What a vocabulary file says, put in the form that encoding needs.
struct PipelineParts {
  std::vector<VocabularyToken> tokens;  // by id
  std::vector<AddedToken> added;        // content of normalized ones is normalized already
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::unique_ptr<WordModel> model;
  std::vector<int32_t> prefix_ids;  // add_special: before and after a text
  std::vector<int32_t> suffix_ids;
  bool drops_first_space = false;
  bool starts_after_control = false;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
};

// BOS and EOS of a GGUF vocabulary, and whether they are put around a text. InvalidArgument when an
// id is outside the vocabulary.
absl::Status SetEnds(const TokenizerSpec& spec, bool add_bos, bool add_eos, PipelineParts* parts);

// Sentencepiece's spelling of a space.
inline constexpr char kSpaceMark[] = "\xE2\x96\x81";  // U+2581

// Cuts texts in front of spaces where the vocabulary allows: where a space is a token, and stands
// in tokens in front only, no merge reaches over that cut, and short words are faster than long
// texts.
void CutAtSpaces(PipelineParts* parts);

// Encodes in five steps: added tokens are found, what is left is normalized, cut into words, and
// each word is cut into tokens by the model; then BOS and EOS. Every kind of vocabulary but
// sentencepiece files is such a pipeline.
class PipelineTokenizer : public Tokenizer {
 public:
  explicit PipelineTokenizer(PipelineParts parts);

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options) const override;

 private:
  // One Encode call: what was written anew, and the words that were cut already.
  struct Run {
    AddedTokenMatcher::Special special = AddedTokenMatcher::Special::kSkip;
    std::deque<std::string> arena;
    std::unordered_map<std::string_view, std::pair<size_t, size_t>> cache;  // into ids
    std::vector<int32_t> ids;
  };

  std::vector<AddedTokenPiece> SplitRaw(std::string_view text, const EncodeOptions& options) const;
  absl::Status EncodeSection(std::string_view section, bool starts_text, Run* run) const;
  void EncodeWord(std::string_view word, Run* run) const;

  AddedTokenMatcher raw_;         // tokens looked for in the text as it is
  AddedTokenMatcher normalized_;  // in the normalized text
  AddedTokenMatcher all_raw_;     // every token by its own content
  std::vector<NormalizerStep> normalizer_;
  std::vector<PreTokenizerStep> pre_tokenizer_;
  std::unique_ptr<WordModel> model_;
  std::vector<int32_t> prefix_ids_;
  std::vector<int32_t> suffix_ids_;
};

}  // namespace tandem::tokenizer
