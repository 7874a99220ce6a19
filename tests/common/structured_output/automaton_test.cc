#include "common/structured_output/automaton.h"

#include <gtest/gtest.h>

namespace tandem::structured_output {
namespace {

TEST(CodePointSets, ComplementAndIntersectionLeaveOutSurrogates) {
  const CodePointSet letters = Normalized({{'c', 'z'}, {'a', 'b'}, {'b', 'd'}});
  EXPECT_EQ(letters, (CodePointSet{{'a', 'z'}}));
  const CodePointSet rest = Complement(letters);
  EXPECT_TRUE(Intersection(letters, rest).empty());
  EXPECT_EQ(CountOf(rest) + CountOf(letters), 0x110000u - 0x800u);
  EXPECT_EQ(CountOf(Normalized({{0xd700, 0xe000}})), 0x101u);
}

TEST(CodePointSets, BrokenUtf8BecomesReplacements) {
  EXPECT_EQ(CodePointsOf("a\xc3\xa9\xf0\x9f\x98\x80"), (std::vector<uint32_t>{'a', 0xe9, 0x1f600}));
  EXPECT_EQ(CodePointsOf("\xc3"), (std::vector<uint32_t>{0xfffd}));
  EXPECT_EQ(CodePointsOf("\xff"
                         "b"),
            (std::vector<uint32_t>{0xfffd, 'b'}));
}

TEST(Automata, TextsOfTakesJustThese) {
  const std::string_view texts[] = {"a", "ab", "abc", "\xc3\xa9"};
  const Automaton some = TextsOf(texts);
  for (const std::string_view text : texts) {
    EXPECT_TRUE(some.Accepts(text)) << text;
  }
  for (const std::string_view text : {"", "b", "abcd", "ac"}) {
    EXPECT_FALSE(some.Accepts(text)) << text;
  }
  const Automaton others = Not(some);
  for (const std::string_view text : texts) {
    EXPECT_FALSE(others.Accepts(text)) << text;
  }
  EXPECT_TRUE(others.Accepts("abcd"));
  EXPECT_TRUE(others.Accepts(""));
  EXPECT_TRUE(TextsOf({}).accepts_nothing());
}

TEST(Automata, LengthsCountCodePoints) {
  const auto counted = TextsOfLength(2, 3);
  ASSERT_TRUE(counted.ok());
  EXPECT_FALSE(counted->Accepts("\xc3\xa9"));
  EXPECT_TRUE(counted->Accepts("\xc3\xa9\xc3\xa9"));
  EXPECT_FALSE(counted->Accepts("abcd"));
  const LengthRange range = LengthsOf(*counted);
  EXPECT_EQ(range.shortest, 2);
  EXPECT_EQ(range.longest, 3);
  EXPECT_FALSE(LengthsOf(AnyText()).longest.has_value());
  EXPECT_FALSE(TextsOfLength(0, 1'000'000).ok());
}

TEST(Automata, BothTakesWhatEachTakes) {
  const std::string_view left[] = {"a", "bb", "ccc"};
  const auto two = TextsOfLength(2, std::nullopt);
  const auto both = Both(TextsOf(left), *two);
  ASSERT_TRUE(both.ok());
  EXPECT_FALSE(both->Accepts("a"));
  EXPECT_TRUE(both->Accepts("bb"));
  EXPECT_TRUE(both->Accepts("ccc"));
  EXPECT_TRUE(Both(*both, Not(*both))->accepts_nothing());
}

TEST(Automata, EquivalentStatesAreOne) {
  const std::string_view texts[] = {"ax", "bx", "cx"};
  EXPECT_EQ(TextsOf(texts).states.size(), 3u);
}

}  // namespace
}  // namespace tandem::structured_output
