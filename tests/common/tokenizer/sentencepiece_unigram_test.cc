#include "common/tokenizer/sentencepiece_unigram.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

namespace tandem::tokenizer {
namespace {

using Type = SentencePieceProto::Type;

std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) {
    out.push_back(static_cast<char>(value | 0x80));
  }
  out.push_back(static_cast<char>(value));
  return out;
}
std::string Number(int field, uint64_t value) {
  return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
}
std::string Bytes(int field, const std::string& bytes) {
  return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string Piece(const std::string& text, float score, Type type = Type::kNormal) {
  std::string bits(4, '\0');
  std::memcpy(bits.data(), &score, 4);
  return Bytes(1,
               Bytes(1, text) + Varint(2 << 3 | 5) + bits + Number(3, static_cast<uint64_t>(type)));
}
std::string Normalizer(bool dummy_prefix, bool remove_extra, const std::string& charsmap = "") {
  return Bytes(3, (charsmap.empty() ? "" : Bytes(2, charsmap)) + Number(3, dummy_prefix ? 1 : 0) +
                      Number(4, remove_extra ? 1 : 0));
}

absl::StatusOr<std::unique_ptr<SentencePieceUnigram>> Open(const std::string& file) {
  const auto proto = ReadSentencePieceProto(file);
  return proto.ok() ? SentencePieceUnigram::Create(*proto) : proto.status();
}

std::vector<int32_t> Encode(const std::string& file, std::string_view text) {
  const auto model = Open(file);
  EXPECT_TRUE(model.ok() && *model != nullptr) << model.status();
  std::vector<int32_t> ids;
  if (model.ok() && *model != nullptr) {
    (*model)->Encode(text, &ids);
  }
  return ids;
}

const std::string kPieces = Piece("<unk>", 0, Type::kUnknown) + Piece("a", -2) + Piece("aa", -3) +
                            Piece("\xe2\x96\x81", -4) +
                            Piece(
                                "\xe2\x96\x81"
                                "a",
                                -3.5) +
                            Piece("b", -1) + Piece("[X]", 0, Type::kUserDefined);

TEST(SentencePieceUnigram, TakesTheBestCut) {
  const std::string file = kPieces + Normalizer(false, false);
  EXPECT_EQ(Encode(file, "aab"), (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(Encode(file, " a"), (std::vector<int32_t>{4}));
  EXPECT_EQ(Encode(file, "zzb"), (std::vector<int32_t>{0, 5})) << "a run of unknown ones is one";
  EXPECT_EQ(Encode(file, "a[X]b"), (std::vector<int32_t>{1, 6, 5}));
  EXPECT_TRUE(Encode(file, "").empty());
}

TEST(SentencePieceUnigram, OfEqualCutsTheFirstFoundStays) {
  // aa a, a aa: the same sum; the one that reached the end first stays.
  EXPECT_EQ(Encode(kPieces + Normalizer(false, false), "aaa"), (std::vector<int32_t>{1, 2}));
}

TEST(SentencePieceUnigram, LongTextsKeepThePrecisionOfShortOnes) {
  // In float32 -110000 - 0.0035 - 0.0035 is -110000, and -110000 - 0.007 is less.
  const std::string file = Piece("<unk>", 0, Type::kUnknown) + Piece("a", -110'000) +
                           Piece("b", -0.0035F) + Piece("bb", -0.007F) + Normalizer(false, false);
  EXPECT_EQ(Encode(file, "bb"), (std::vector<int32_t>{3}));
  EXPECT_EQ(Encode(file, "abb"), (std::vector<int32_t>{1, 3}));
}

TEST(SentencePieceUnigram, SpacesAsTheModelSays) {
  EXPECT_EQ(Encode(kPieces + Normalizer(true, true), "  a  b "), (std::vector<int32_t>{4, 3, 5}));
  EXPECT_EQ(Encode(kPieces + Normalizer(true, false), "a "), (std::vector<int32_t>{4, 3}));
  EXPECT_TRUE(Encode(kPieces + Normalizer(true, true), "   ").empty());
}

TEST(SentencePieceUnigram, OtherKindsAreTheLibrarys) {
  const auto model = Open(kPieces + Bytes(2, Number(3, 2)));
  ASSERT_TRUE(model.ok());
  EXPECT_EQ(*model, nullptr);
}

TEST(SentencePieceUnigram, BrokenFilesAreRefused) {
  const std::string file = kPieces + Normalizer(false, false);
  EXPECT_FALSE(Open(file + "\x0a\xff").ok());
  EXPECT_FALSE(Open("\x0f").ok());
  EXPECT_FALSE(Open(kPieces + Normalizer(false, false, "xyz")).ok());
  EXPECT_FALSE(Open(kPieces + Normalizer(false, false, std::string("\xff\0\0\0abcd", 8))).ok());
  // Any trie is walked within its bounds.
  for (uint32_t seed = 1; seed < 200; ++seed) {
    std::string blob(4 + 64 + 8, '\0');
    blob[0] = 64;
    uint32_t state = seed;
    for (size_t i = 4; i < blob.size(); ++i) {
      state = state * 1664525u + 1013904223u;
      blob[i] = static_cast<char>(state >> 24);
    }
    const auto map = CharsMap::Parse(blob);
    ASSERT_TRUE(map.ok());
    EXPECT_LE(map->Longest("abcdefgh").bytes, 8u);
  }
}

}  // namespace
}  // namespace tandem::tokenizer
