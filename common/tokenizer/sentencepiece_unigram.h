#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/charsmap.h"
#include "common/tokenizer/sentencepiece_proto.h"
#include "common/tokenizer/unigram.h"

namespace tandem::tokenizer {

// A sentencepiece model of the unigram kind, encoded as current releases of the library do it:
// Debian's release breaks ties between cuts of equal score in another way. Immutable.
class SentencePieceUnigram {
 public:
  // Null where the model is of another kind, which the library encodes.
  static absl::StatusOr<std::unique_ptr<SentencePieceUnigram>> Create(
      const SentencePieceProto& proto);

  // Appends the tokens of `text` (valid UTF-8).
  void Encode(std::string_view text, std::vector<int32_t>* ids) const;

 private:
  SentencePieceUnigram(const SentencePieceProto& proto, CharsMap charsmap);
  std::string Normalized(std::string_view text) const;
  // What the text starts with becomes; how many bytes it takes.
  std::string_view Chunk(std::string_view text, size_t* bytes) const;

  CharsMap charsmap_;
  bool add_dummy_prefix_;
  bool remove_extra_spaces_;
  std::string space_;
  std::vector<std::string> user_defined_;  // longest first
  std::unique_ptr<UnigramModel> model_;
};

}  // namespace tandem::tokenizer
