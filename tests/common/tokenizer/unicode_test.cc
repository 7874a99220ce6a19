#include "common/tokenizer/unicode.h"

#include <string>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/regex.h"
#include "gtest/gtest.h"

namespace tandem::tokenizer {
namespace {

TEST(Unicode, EveryCodePointSurvivesUtf8) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 61) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, &text);
    EXPECT_EQ(FindInvalidUtf8(text), std::nullopt) << static_cast<uint32_t>(c);
    EXPECT_EQ(DecodeUtf8(text, 0).value, c);
    EXPECT_EQ(DecodeUtf8Before(text, text.size()).value, c);
  }
}

TEST(Unicode, NormalForms) {
  EXPECT_EQ(*Normalize("e\xcc\x81", NormalForm::kNfc), "\xc3\xa9");
  EXPECT_EQ(*Normalize("\xc3\xa9", NormalForm::kNfd), "e\xcc\x81");
  EXPECT_EQ(*Normalize("\xef\xac\x81", NormalForm::kNfkc), "fi");
  EXPECT_EQ(*Normalize("\xef\xac\x81", NormalForm::kNfc), "\xef\xac\x81");
}

TEST(Unicode, CaseMappingsLikePython) {
  EXPECT_EQ(UpperOf(0xDF), U"SS");
  EXPECT_EQ(TitleOf(0xDF), U"Ss");
  EXPECT_EQ(TitleOf(0x1C6), std::u32string(1, 0x1C5));
  EXPECT_EQ(LowerOf(U"\u03A3", 0), U"\u03C3");        // alone: no final sigma
  EXPECT_EQ(LowerOf(U"\u039F\u03A3", 1), U"\u03C2");  // ends a word
  EXPECT_EQ(LowerOf(U"\u03A3\u039F", 0), U"\u03C3");
}

TEST(ByteLevel, KnowsTheAlphabet) {
  EXPECT_EQ(BytesOfByteLevel("\xc4\xa0the"), " the");           // U+0120
  EXPECT_EQ(BytesOfByteLevel("\xc4\x8a"), "\n");                // U+010A
  EXPECT_EQ(BytesOfByteLevel("\xc3\x83\xc2\xa9"), "\xc3\xa9");  // two letters, two bytes
  EXPECT_EQ(BytesOfByteLevel("a b"), std::nullopt);
  EXPECT_EQ(ByteOfByteToken("<0x0A>"), 10);
  EXPECT_EQ(ByteOfByteToken("<0xg0>"), std::nullopt);
  EXPECT_EQ(ByteOfByteToken("<0x0A"), std::nullopt);
}

TEST(Regex, SpacesAreUnicodes) {
  const auto regex = Regex::Compile(R"(\s+|[^\s]+)");
  ASSERT_TRUE(regex.ok());
  const std::string text = "a\xe2\x80\x83\xc2\x85z\xe1\xa0\x8ez";  // U+2003 U+0085; U+180E is none
  Regex::Matches matches(**regex, text);
  std::string ends;
  for (auto match = matches.Next(); match.ok() && *match; match = matches.Next()) {
    ends += std::to_string((*match)->end) + " ";
  }
  EXPECT_EQ(ends, "1 6 11 ");
}

TEST(Regex, EndlessBacktrackingIsAnError) {
  const auto regex = Regex::Compile("(a|aa)+[bc]");
  ASSERT_TRUE(regex.ok());
  std::string text(200, 'a');
  text += '!';
  Regex::Matches matches(**regex, text);
  const auto match = matches.Next();
  ASSERT_FALSE(match.ok());
  EXPECT_EQ(match.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tandem::tokenizer
