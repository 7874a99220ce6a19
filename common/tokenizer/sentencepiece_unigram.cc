#include "common/tokenizer/sentencepiece_unigram.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/status_macros.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/pipeline_tokenizer.h"
#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

using Type = SentencePieceProto::Type;

std::unique_ptr<UnigramModel> MakeModel(const SentencePieceProto& proto) {
  float best = -std::numeric_limits<float>::infinity();
  for (const SentencePieceProto::Piece& piece : proto.pieces) {
    if (piece.type == Type::kNormal) {
      best = std::max(best, piece.score);
    }
  }
  std::vector<UnigramModel::Piece> pieces;
  std::vector<int32_t> byte_ids(256, -1);
  int32_t unknown_id = 0;
  for (size_t i = 0; i < proto.pieces.size(); ++i) {
    const SentencePieceProto::Piece& piece = proto.pieces[i];
    UnigramModel::Piece& out = pieces.emplace_back();
    out.score = static_cast<double>(best);  // of those without a text, which never stand in one
    if (piece.type == Type::kNormal || piece.type == Type::kUserDefined) {
      out = {piece.text, static_cast<double>(piece.score)};
    } else if (piece.type == Type::kUnknown) {
      unknown_id = static_cast<int32_t>(i);
    } else if (const auto byte = ByteOfByteToken(piece.text); byte && piece.type == Type::kByte) {
      byte_ids[*byte] = static_cast<int32_t>(i);
    }
  }
  const bool all_bytes = std::find(byte_ids.begin(), byte_ids.end(), -1) == byte_ids.end();
  if (!proto.byte_fallback || !all_bytes) {
    byte_ids.clear();
  }
  return std::make_unique<UnigramModel>(pieces, unknown_id, std::move(byte_ids),
                                        UnigramModel::Precision::kSingle);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SentencePieceUnigram>> SentencePieceUnigram::Create(
    const SentencePieceProto& proto) {
  if (!proto.is_unigram || proto.space_is_suffix) {
    return nullptr;
  }
  TANDEM_ASSIGN_OR_RETURN(CharsMap charsmap, CharsMap::Parse(proto.charsmap));
  return std::unique_ptr<SentencePieceUnigram>(
      new SentencePieceUnigram(proto, std::move(charsmap)));
}

SentencePieceUnigram::SentencePieceUnigram(const SentencePieceProto& proto, CharsMap charsmap)
    : charsmap_(std::move(charsmap)),
      add_dummy_prefix_(proto.add_dummy_prefix),
      remove_extra_spaces_(proto.remove_extra_spaces),
      space_(proto.escape_spaces ? kSpaceMark : " "),
      model_(MakeModel(proto)) {
  for (const SentencePieceProto::Piece& piece : proto.pieces) {
    if (piece.type == Type::kUserDefined && !piece.text.empty()) {
      user_defined_.push_back(piece.text);
    }
  }
  std::sort(user_defined_.begin(), user_defined_.end(),
            [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
}

std::string_view SentencePieceUnigram::Chunk(std::string_view text, size_t* bytes) const {
  for (const std::string& symbol : user_defined_) {
    if (text.starts_with(symbol)) {
      *bytes = symbol.size();
      return text.substr(0, symbol.size());
    }
  }
  const CharsMap::Match match = charsmap_.Longest(text);
  if (match.bytes > 0) {
    *bytes = match.bytes;
    return match.replacement;
  }
  *bytes = static_cast<size_t>(DecodeUtf8(text, 0).bytes);
  return text.substr(0, *bytes);
}

std::string SentencePieceUnigram::Normalized(std::string_view text) const {
  size_t bytes = 0;
  if (remove_extra_spaces_) {
    while (!text.empty() && Chunk(text, &bytes) == " ") {
      text.remove_prefix(bytes);
    }
  }
  std::string out;
  if (text.empty()) {
    return out;
  }
  out.reserve(text.size() + space_.size());
  if (add_dummy_prefix_) {
    out += space_;
  }
  bool after_space = remove_extra_spaces_;
  while (!text.empty()) {
    std::string_view chunk = Chunk(text, &bytes);
    text.remove_prefix(bytes);
    while (after_space && chunk.starts_with(' ')) {
      chunk.remove_prefix(1);
    }
    for (const char c : chunk) {
      if (c == ' ') {
        out += space_;
      } else {
        out.push_back(c);
      }
    }
    after_space = remove_extra_spaces_ && (chunk.empty() ? after_space : chunk.back() == ' ');
  }
  while (remove_extra_spaces_ && out.ends_with(space_)) {
    out.resize(out.size() - space_.size());
  }
  return out;
}

void SentencePieceUnigram::Encode(std::string_view text, std::vector<int32_t>* ids) const {
  model_->Encode(Normalized(text), ids);
}

}  // namespace tandem::tokenizer
