#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/tokenizer/bpe.h"

namespace tandem::tokenizer {

// A unigram language model: the cut of a word with the highest sum of its tokens' scores (Viterbi;
// linear in the word, times the longest token). A run of unknown characters is one token.
class UnigramModel : public WordModel {
 public:
  struct Piece {
    std::string text;
    double score = 0;
  };
  // How sums of scores are rounded, which decides between cuts of equal score: tokenizers adds in
  // float64, sentencepiece in float32, from zero again once the sum is below -100,000.
  enum class Precision { kDouble, kSingle };
  // `pieces` by id; one with an empty text is never used. `byte_ids`: byte-fallback tokens, 256 or
  // none.
  UnigramModel(const std::vector<Piece>& pieces, int32_t unknown_id, std::vector<int32_t> byte_ids,
               Precision precision = Precision::kDouble);

  void Encode(std::string_view word, std::vector<int32_t>* ids) const override;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> next;
    int32_t id = -1;
  };
  struct Best {
    double score = 0;
    size_t begin = 0;
    int32_t id = -1;  // -1: not reached
  };

  void Insert(const std::string& text, int32_t id);
  void Extend(std::string_view word, size_t begin, std::vector<Best>* best) const;
  // Makes the sum at `begin` zero; what lies further on keeps its distance.
  void Restart(size_t begin, std::vector<Best>* best) const;

  std::vector<Node> nodes_;
  std::vector<double> scores_;
  size_t longest_ = 4;  // bytes of a piece or of an unknown character
  Precision precision_;
  int32_t unknown_id_;
  double unknown_score_ = 0;
  std::vector<int32_t> byte_ids_;
};

}  // namespace tandem::tokenizer
