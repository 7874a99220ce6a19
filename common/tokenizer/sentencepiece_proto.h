#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::tokenizer {

// What a sentencepiece model file holds, as far as encoding by a unigram model needs it.
struct SentencePieceProto {
  enum class Type {
    kNormal = 1,
    kUnknown = 2,
    kControl = 3,
    kUserDefined = 4,
    kUnused = 5,
    kByte = 6
  };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::kNormal;
  };
  std::vector<Piece> pieces;
  bool is_unigram = true;
  bool is_bpe = false;
  bool byte_fallback = false;
  bool space_is_suffix = false;  // treat_whitespace_as_suffix
  std::string charsmap;          // precompiled_charsmap
  bool add_dummy_prefix = true;
  bool remove_extra_spaces = true;
  bool escape_spaces = true;
};

// InvalidArgument: the file is broken.
absl::StatusOr<SentencePieceProto> ReadSentencePieceProto(std::string_view file);

}  // namespace tandem::tokenizer
