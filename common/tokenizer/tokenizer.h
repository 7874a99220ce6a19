#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace tandem::tokenizer {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0;
  size_t end = 0;
};

struct EncodeOptions {
  // The text of control tokens (<s>, <|im_end|>, ...) becomes those tokens. Off: it stays plain
  // text. Added tokens that are not control tokens are recognised either way.
  bool parse_special = false;
  // Adds what the model wants around a text: usually BOS in front.
  bool add_special = false;
  // With parse_special off: control tokens are recognised where they lie wholly inside one of these
  // ranges, which are sorted and disjoint. The text is still encoded as one.
  std::span<const TextRange> special_ranges;
};

// Text to token ids and back, for every kind of vocabulary that a TokenizerSpec can hold.
// Immutable and thread-safe after Create.
class Tokenizer {
 public:
  // InvalidArgument: the vocabulary is broken; Unimplemented: it needs something we do not have.
  // Both name what.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerSpec& spec);

  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `text` must be valid UTF-8, else InvalidArgument with the offset of the first bad byte.
  // Time is O(n log n) at worst in the text's length.
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      const EncodeOptions& options) const = 0;

  // What the token adds to a text that goes on (a first space is kept). May be part of a UTF-8
  // character. A control token gives its own text. Empty for an id outside the vocabulary.
  std::string_view TokenBytes(int32_t id) const;
  // The token as the vocabulary spells it ("Ġthe", "▁the", "<0x0A>"). Empty outside the vocabulary.
  std::string_view TokenText(int32_t id) const;
  // The token of this spelling.
  std::optional<int32_t> TokenId(std::string_view text) const;
  // True for a control token, which skip_special_tokens hides.
  bool IsSpecial(int32_t id) const;
  // True where the space in front of the first token is no part of a text that starts afresh
  // (sentencepiece's dummy prefix). Generated text follows a prompt and keeps it.
  bool DropsFirstSpace() const { return drops_first_space_; }
  // With DropsFirstSpace: whether a text still starts after the control tokens in front of it
  // (sentencepiece), or these are its start (tokenizers).
  bool StartsAfterControl() const { return starts_after_control_; }
  // One more than the highest id; ids without a token in between have empty texts.
  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> bos_id() const { return bos_id_; }
  std::optional<int32_t> eos_id() const { return eos_id_; }
  // bos_token and eos_token for chat templates; empty when there is none.
  std::string_view bos_text() const { return bos_id_ ? TokenText(*bos_id_) : std::string_view(); }
  std::string_view eos_text() const { return eos_id_ ? TokenText(*eos_id_) : std::string_view(); }

 protected:
  struct Token {
    std::string text;   // the vocabulary's spelling
    std::string bytes;  // what it adds to a text
    bool special = false;
  };

  Tokenizer() = default;
  // Sorts the ids by spelling for TokenId; call last when the tokens are in place.
  void IndexTokens();

  std::vector<Token> tokens_;  // by id
  std::optional<int32_t> bos_id_;
  std::optional<int32_t> eos_id_;
  bool drops_first_space_ = false;
  bool starts_after_control_ = false;

 private:
  std::vector<int32_t> ids_by_text_;
};

}  // namespace tandem::tokenizer
