#include "common/structured_output/pattern.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::structured_output {
namespace {

struct Case {
  const char* pattern;
  std::vector<std::string> takes;
  std::vector<std::string> refuses;
};

const Case kSearches[] = {
    {"b+", {"abbc", "b"}, {"", "ac"}},
    {"^b+$", {"b", "bb"}, {"", "ab", "ba"}},
    {"^(cat|dog)s?$", {"cat", "dogs"}, {"cats!", "xcat"}},
    {"^a|b$", {"axx", "xxb", "a"}, {"xa", "bx"}},
    {"^[^a-c]{2,3}$", {"de", "def"}, {"d", "defg", "da"}},
    {"^\\d{3}-\\d{4}$", {"555-1234"}, {"5551234"}},
    {"^\\w+\\s\\S$", {"a_1 x"}, {"a x y", "a-x"}},
    {"^.$", {"a", "\xc3\xa9"}, {"", "\n", "ab"}},
    {"^a{0}$", {""}, {"a"}},
    {"^a{2,}$", {"aa", "aaaa"}, {"a"}},
    {"^(?:ab)*?c$", {"c", "ababc"}, {"abab"}},
    {"^[\\]\\-x]+$", {"]-x"}, {"a"}},
    {"^[a-]$", {"a", "-"}, {"b"}},
    {"^\\u00e9\\x41\\u{1f600}$",
     {"\xc3\xa9"
      "A\xf0\x9f\x98\x80"},
     {"A"}},
    {"^(?<year>\\d{4})$", {"2026"}, {"26"}},
    {"a{,2}", {"a{,2}"}, {"aa"}},
    {"", {"", "anything"}, {}},
    {"^$", {""}, {"x"}},
    {"^(a?){3}$", {"", "a", "aaa"}, {"aaaa"}},
    {"^((a|ab)(c|bcd))$", {"ac", "abc", "abcd", "abbcd"}, {"ab", "abcdd"}},
};

TEST(Pattern, SearchesAsEcmaScriptDoes) {
  for (const Case& one : kSearches) {
    const auto texts = CompilePattern(one.pattern, PatternUse::kSearch);
    ASSERT_TRUE(texts.ok()) << one.pattern << ": " << texts.status();
    for (const std::string& text : one.takes) {
      EXPECT_TRUE(texts->Accepts(text)) << one.pattern << " on " << text;
    }
    for (const std::string& text : one.refuses) {
      EXPECT_FALSE(texts->Accepts(text)) << one.pattern << " on " << text;
    }
  }
}

TEST(Pattern, WholeTexts) {
  const auto texts = CompilePattern("a|bc", PatternUse::kWhole);
  ASSERT_TRUE(texts.ok());
  EXPECT_TRUE(texts->Accepts("bc"));
  EXPECT_FALSE(texts->Accepts("abc"));
  EXPECT_FALSE(texts->Accepts("xa"));
}

TEST(Pattern, NamesWhatItDoesNotSupport) {
  const std::pair<const char*, const char*> kUnsupported[] = {
      {"(?=a)b", "lookahead"},   {"(?<!a)b", "lookbehind"}, {"(a)\\1", "backreference"},
      {"\\bword", "boundary"},   {"\\p{L}", "property"},    {"(?i)a", "flag"},
      {"a{5000}", "repetition"},
  };
  for (const auto& [pattern, word] : kUnsupported) {
    const absl::Status status = CompilePattern(pattern, PatternUse::kSearch).status();
    EXPECT_TRUE(absl::IsUnimplemented(status)) << pattern;
    EXPECT_NE(status.message().find(word), std::string::npos) << status;
  }
  for (const char* pattern : {"(", ")", "[a", "a**", "*", "a{3,2}", "\\u12", "[z-a]", "\\"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CompilePattern(pattern, PatternUse::kSearch).status()))
        << pattern;
  }
}

TEST(Pattern, HostileOnesEndSoon) {
  for (const std::string& pattern :
       {std::string("(a|a)*b(a|b){200}(a|b){200}"), std::string("((((a{50}){50}){50}){50})"),
        std::string("(.*a){40}.{200}"), std::string(9000, '('), std::string("(a*)*b"),
        std::string("[ab]*a[ab]{14}")}) {
    const auto texts = CompilePattern(pattern, PatternUse::kSearch);
    if (texts.ok()) {
      EXPECT_LE(texts->states.size(), kMaxAutomatonStates) << pattern;
    } else {
      EXPECT_FALSE(texts.status().message().empty());
    }
  }
}

}  // namespace
}  // namespace tandem::structured_output
