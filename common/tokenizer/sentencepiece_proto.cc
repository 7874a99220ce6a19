#include "common/tokenizer/sentencepiece_proto.h"

#include <bit>
#include <cstring>
#include <optional>

#include "common/base/status_macros.h"

namespace tandem::tokenizer {
namespace {

// One field of a protobuf message: a number, or bytes.
struct Field {
  uint64_t number = 0;
  uint64_t value = 0;
  std::string_view bytes;
};

// Walks the fields of a message; the file is untrusted.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  // Nothing at the end, or where the message is broken.
  std::optional<Field> Next() {
    if (at_ == text_.size()) {
      return std::nullopt;
    }
    Field field;
    const uint64_t tag = Varint();
    field.number = tag >> 3;
    switch (tag & 7) {
      case 0:
        field.value = Varint();
        break;
      case 1:
        field.value = Fixed(8);
        break;
      case 2: {
        const uint64_t size = Varint();
        if (size > text_.size() - at_) {
          broken_ = true;
          break;
        }
        field.bytes = text_.substr(at_, size);
        at_ += size;
        break;
      }
      case 5:
        field.value = Fixed(4);
        break;
      default:
        broken_ = true;
    }
    return broken_ ? std::nullopt : std::optional(field);
  }
  bool broken() const { return broken_; }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && at_ < text_.size(); shift += 7) {
      const auto byte = static_cast<uint8_t>(text_[at_++]);
      value |= static_cast<uint64_t>(byte & 0x7fu) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
    broken_ = true;
    return 0;
  }
  uint64_t Fixed(size_t size) {
    if (size > text_.size() - at_) {
      broken_ = true;
      return 0;
    }
    uint64_t value = 0;
    std::memcpy(&value, text_.data() + at_, size);  // little endian, as protobuf is
    at_ += size;
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool broken_ = false;
};

bool ReadPiece(std::string_view bytes, SentencePieceProto::Piece* piece) {
  Reader reader(bytes);
  while (const auto field = reader.Next()) {
    if (field->number == 1) {
      piece->text = std::string(field->bytes);
    } else if (field->number == 2) {
      piece->score = std::bit_cast<float>(static_cast<uint32_t>(field->value));
    } else if (field->number == 3 && field->value >= 1 && field->value <= 6) {
      piece->type = static_cast<SentencePieceProto::Type>(field->value);
    }
  }
  return !reader.broken();
}

bool ReadTrainer(std::string_view bytes, SentencePieceProto* proto) {
  constexpr uint64_t kUnigram = 1;
  constexpr uint64_t kBpe = 2;
  Reader reader(bytes);
  while (const auto field = reader.Next()) {
    if (field->number == 3) {
      proto->is_unigram = field->value == kUnigram;
      proto->is_bpe = field->value == kBpe;
    } else if (field->number == 24) {
      proto->space_is_suffix = field->value != 0;
    } else if (field->number == 35) {
      proto->byte_fallback = field->value != 0;
    }
  }
  return !reader.broken();
}

bool ReadNormalizer(std::string_view bytes, SentencePieceProto* proto) {
  Reader reader(bytes);
  while (const auto field = reader.Next()) {
    if (field->number == 2) {
      proto->charsmap = std::string(field->bytes);
    } else if (field->number == 3) {
      proto->add_dummy_prefix = field->value != 0;
    } else if (field->number == 4) {
      proto->remove_extra_spaces = field->value != 0;
    } else if (field->number == 5) {
      proto->escape_spaces = field->value != 0;
    }
  }
  return !reader.broken();
}

}  // namespace

absl::StatusOr<SentencePieceProto> ReadSentencePieceProto(std::string_view file) {
  SentencePieceProto proto;
  Reader reader(file);
  bool good = true;
  while (const auto field = reader.Next()) {
    if (field->number == 1) {
      good = good && ReadPiece(field->bytes, &proto.pieces.emplace_back());
    } else if (field->number == 2) {
      good = good && ReadTrainer(field->bytes, &proto);
    } else if (field->number == 3) {
      good = good && ReadNormalizer(field->bytes, &proto);
    }
  }
  if (!good || reader.broken()) {
    return absl::InvalidArgumentError("sentencepiece model: the file is broken");
  }
  return proto;
}

}  // namespace tandem::tokenizer
