// Texts drawn at random under the masks are always what was asked for.
#include <bit>
#include <random>

#include "common/base/clock.h"
#include "common/structured_output/probe_grammar.h"
#include "common/structured_output/schema_validator.h"
#include "tests/common/structured_output/grammar_fixture.h"

namespace tandem::structured_output {
namespace {

using Kind = GrammarSpec::Kind;

class SampledDocumentsTest : public GrammarFixture {
 protected:
  // A text of at most `max_tokens` tokens, and whether it ended of itself.
  std::pair<std::string, bool> Sample(GrammarMatcher& matcher, std::mt19937& random,
                                      int max_tokens) const {
    matcher.Reset();
    std::string text;
    std::vector<uint32_t> mask((static_cast<size_t>(tokenizer_->vocab_size()) + 31) / 32);
    for (int i = 0; i < max_tokens; ++i) {
      EXPECT_TRUE(matcher.FillMask(mask));
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
        if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0) {
          allowed.push_back(id);
        }
      }
      EXPECT_FALSE(allowed.empty()) << "stuck after " << text;
      if (allowed.empty()) {
        return {text, false};
      }
      const int32_t token = allowed[random() % allowed.size()];
      EXPECT_TRUE(matcher.Accept(token));
      if (token == end_token_) {
        return {text, true};
      }
      text += tokenizer_->TokenBytes(token);
    }
    return {text, false};
  }
};

TEST_F(SampledDocumentsTest, SatisfyTheirSchemas) {
  constexpr uint32_t kSeed = 20261130;
  std::mt19937 random(kSeed);
  size_t ended = 0;
  for (const Json& row : Rows("json_schema.jsonl")) {
    const std::string schema = row["schema"].dump();
    const auto matcher = Matcher(Spec(Kind::kJsonSchema, schema));
    if (!matcher.ok()) {
      continue;
    }
    const auto document = SchemaDocument::Parse(schema);
    ASSERT_TRUE(document.ok());
    for (int i = 0; i < 8; ++i) {
      const auto [text, finished] = Sample(**matcher, random, 300);
      if (!finished) {
        continue;
      }
      ++ended;
      const Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded()) << row["id"] << ": " << text;
      const auto good = Satisfies(value, (*document)->root(), document->get());
      ASSERT_TRUE(good.ok()) << good.status();
      EXPECT_TRUE(*good) << row["id"] << ", seed " << kSeed << ": " << text;
    }
  }
  EXPECT_GT(ended, 200u);
}

TEST_F(SampledDocumentsTest, BoundedSchemasEnd) {
  std::mt19937 random(7);
  for (
      const char* schema :
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"number"},"c":{"enum":["x","y"]},"d":{"type":"string","maxLength":10}},"required":["a","b","c","d"],"additionalProperties":false})",
       R"({"type":"array","items":{"type":"boolean"},"maxItems":4})",
       R"({"type":"string","format":"date-time"})"}) {
    const auto matcher = Matcher(Spec(Kind::kJsonSchema, schema));
    ASSERT_TRUE(matcher.ok()) << matcher.status();
    for (int i = 0; i < 20; ++i) {
      const auto [text, finished] = Sample(**matcher, random, 2000);
      EXPECT_TRUE(finished) << schema << ": " << text;
    }
  }
}

TEST_F(SampledDocumentsTest, OtherKinds) {
  std::mt19937 random(8);
  GrammarSpec choice;
  choice.kind = Kind::kChoice;
  choice.choices = {"yes", "no", "not sure"};
  auto matcher = Matcher(choice);
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  for (int i = 0; i < 20; ++i) {
    const auto [text, finished] = Sample(**matcher, random, 50);
    EXPECT_TRUE(finished && std::count(choice.choices.begin(), choice.choices.end(), text) == 1)
        << text;
  }
  matcher = Matcher(Spec(Kind::kRegex, "[ab]{3}-\\d"));
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  EXPECT_TRUE(Takes(**matcher, "aba-7"));
  EXPECT_FALSE(Takes(**matcher, "xaba-7"));
  matcher = Matcher(Spec(Kind::kEbnf, "root ::= \"a\" b\nb ::= [0-9]+"));
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  EXPECT_TRUE(Takes(**matcher, "a42"));
  EXPECT_FALSE(Takes(**matcher, "a"));
  EXPECT_FALSE(Matcher(Spec(Kind::kEbnf, "root ::= missing")).ok());
  EXPECT_FALSE(GrammarText(Spec(Kind::kEbnf, "root ::= " + std::string(100'000, '('))).ok());
  EXPECT_FALSE(GrammarText(Spec(Kind::kEbnf, "root ::= \"a\"{1,1000000000}")).ok());
  EXPECT_TRUE(GrammarText(Spec(Kind::kEbnf, "root ::= \"(((1000000(((\" # (((\n")).ok());
  matcher = Matcher(Spec(Kind::kJsonObject, ""));
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  EXPECT_TRUE(Takes(**matcher, R"({"a": [1, {"b": null}]})"));
  EXPECT_FALSE(Takes(**matcher, "[1]"));
}

TEST_F(SampledDocumentsTest, ToolCalls) {
  ToolCalls calls;
  calls.tools = {
      {"add",
       R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"],"additionalProperties":false})"},
      {"now", ""}};
  calls.call_begin = "<tool_call>\n";
  calls.call_end = "\n</tool_call>";
  calls.separator = "\n";
  calls.max_calls = 2;
  const std::string add =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</tool_call>";
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  auto matcher = Matcher(ToolCallsSpec(calls, "tools"));
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  EXPECT_TRUE(Takes(**matcher, add));
  EXPECT_TRUE(Takes(**matcher, add + "\n" + now));
  EXPECT_FALSE(Takes(**matcher, add + "\n" + now + "\n" + now));
  EXPECT_FALSE(
      Takes(**matcher, "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_FALSE(Takes(**matcher, "hello"));
  calls.required = false;
  matcher = Matcher(ToolCallsSpec(calls, "tools"));
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  EXPECT_TRUE(Takes(**matcher, "hello"));
  EXPECT_TRUE(Takes(**matcher, "I call " + add));
  EXPECT_FALSE(Takes(**matcher, "<tool_call>\n{\"name\": \"no\"}\n</tool_call>"));
  calls.tools[0].parameters = R"({"type":"array","uniqueItems":true})";
  EXPECT_FALSE(GrammarText(ToolCallsSpec(calls, "tools")).ok());
}

TEST_F(SampledDocumentsTest, SlowGrammarsAreFound) {
  const auto good = compiler_->Compile("root ::= [a-z]{1,20}");
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(ProbeGrammar(*good, tokenizer_->vocab_size(), base::SystemClock()).ok());
}

}  // namespace
}  // namespace tandem::structured_output
