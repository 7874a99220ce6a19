#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/tokenizer.h"

namespace tandem::tokenizer {

// A token that is found in the text before anything else is done with it.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;      // a control token
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // looked for in the normalized text
};

// A token (id >= 0), or text that is none: [begin, end) of what was searched.
struct AddedTokenPiece {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

// Finds added tokens: leftmost first, of several that start together the longest. Immutable.
class AddedTokenMatcher {
 public:
  enum class Special { kMatch, kSkip, kOnly };  // kSkip: a control token that is found stays text

  AddedTokenMatcher() : nodes_(1) {}
  void Add(AddedToken token);
  bool empty() const { return tokens_.empty(); }

  // Cuts `text` at its tokens; pieces are in order and without empty texts. kOnly: control tokens
  // alone, and these only where they lie wholly in one of `ranges` (of `text`, sorted).
  std::vector<AddedTokenPiece> Split(std::string_view text, Special special,
                                     std::span<const TextRange> ranges = {}) const;
  // The same for the part `section` of `text`; matches do not leave it.
  void SplitSection(std::string_view text, TextRange section, Special special,
                    std::vector<AddedTokenPiece>* pieces) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> next;
    int32_t token = -1;
  };

  // The longest token at `begin` that ends by `end`, or -1. `only_special`: of the control tokens.
  int32_t LongestAt(std::string_view text, size_t begin, size_t end, bool only_special) const;
  bool Allowed(const AddedToken& token, std::string_view text, size_t begin) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
};

}  // namespace tandem::tokenizer
