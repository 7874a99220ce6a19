#include "common/structured_output/schema_grammar.h"

#include <algorithm>

#include "tests/common/structured_output/grammar_fixture.h"

namespace tandem::structured_output {
namespace {

using Kind = GrammarSpec::Kind;

class SchemaGrammarTest : public GrammarFixture {};

TEST_F(SchemaGrammarTest, FollowsTheGoldensExactlyOrSaysWhyNot) {
  size_t refused = 0;
  const std::vector<Json> rows = Rows("json_schema.jsonl");
  for (const Json& row : rows) {
    const auto matcher = Matcher(Spec(Kind::kJsonSchema, row["schema"].dump()));
    if (!matcher.ok()) {
      ++refused;
      EXPECT_NE(matcher.status().message().find('`'), std::string::npos) << matcher.status();
      continue;
    }
    for (const Json& document : row["valid"]) {
      EXPECT_TRUE(Takes(**matcher, document.dump())) << row["id"] << " " << document;
      EXPECT_TRUE(Takes(**matcher, Spaced(document))) << row["id"] << " " << document;
      EXPECT_TRUE(Takes(**matcher, document.dump(2))) << row["id"] << " " << document;
    }
    const Json unchecked = row.value("unchecked", Json::array());
    for (const Json& document : row["invalid"]) {
      if (std::find(unchecked.begin(), unchecked.end(), document) == unchecked.end()) {
        EXPECT_FALSE(Takes(**matcher, document.dump())) << row["id"] << " " << document;
        EXPECT_FALSE(Takes(**matcher, Spaced(document))) << row["id"] << " " << document;
      }
    }
  }
  EXPECT_LE(refused, 1u) << "of " << rows.size();
}

TEST_F(SchemaGrammarTest, AnyJsonIsWhatTheStandardTakes) {
  const auto matcher = Matcher(Spec(Kind::kJsonSchema, "true"));
  ASSERT_TRUE(matcher.ok()) << matcher.status();
  for (const Json& row : Rows("json_texts.jsonl")) {
    EXPECT_EQ(Takes(**matcher, row["text"].get<std::string>()), row["valid"].get<bool>()) << row;
  }
}

struct Case {
  const char* schema;
  std::vector<std::string> takes;
  std::vector<std::string> refuses;
};

const Case kCases[] = {
    // Together.
    {R"({"allOf":[{"minLength":2},{"maxLength":3,"pattern":"^a"}],"type":"string"})",
     {R"("ab")", R"("abc")"},
     {R"("a")", R"("abcd")", R"("ba")"}},
    {R"({"properties":{"a":{"type":"integer"}},"allOf":[{"properties":{"a":{"minimum":3}}}],"type":"object"})",
     {R"({"a":3})", R"({})"},
     {R"({"a":2})"}},
    {R"({"type":"object","properties":{"a":true},"allOf":[{"additionalProperties":false,"properties":{"b":true}}]})",
     {R"({})", R"({"b":1})"},
     {R"({"a":1})"}},
    {R"({"$ref":"#/$defs/x","maximum":5,"$defs":{"x":{"type":"integer","minimum":1}}})",
     {"1", "5"},
     {"0", "6"}},
    // Names of members.
    {R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
     {R"({"a":1})", R"({"b":"x"})", R"({"aa":"x"})"},
     {R"({"a":"x"})", R"({"b":1})", "{\"\\u0061\":\"x\"}"}},
    {R"({"type":"object","patternProperties":{"^x":{"type":"integer"},"y$":{"minimum":5}},"additionalProperties":false})",
     {R"({"x":1})", R"({"xy":7})", R"({"ay":"text"})"},
     {R"({"xy":4})", R"({"xy":"t"})", R"({"a":1})"}},
    {R"({"type":"object","propertyNames":{"pattern":"^[a-z]+$"},"additionalProperties":true})",
     {R"({"abc":1})"},
     {R"({"A":1})"}},
    {R"({"type":"object","properties":{"a":{}},"maxProperties":2,"required":["a"]})",
     {R"({"a":1})", R"({"a":1,"b":2})"},
     {R"({"a":1,"b":2,"c":3})", "{}"}},
    {R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"minProperties":2,"additionalProperties":false})",
     {R"({"a":1,"c":1})", R"({"a":1,"b":1,"c":1})"},
     {R"({"a":1})", "{}"}},
    {R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"minProperties":2})",
     {R"({"a":null,"b":null})", R"({"b":null,"c":1})", R"({"a":null,"b":null,"c":1,"d":2})"},
     {R"({"b":null})", std::string("{\0", 2), std::string("{\0}", 3)}},
    {R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})",
     {R"({"a":1,"b":1})", R"({"b":1})", "{}"},
     {R"({"a":1})"}},
    // Not.
    {R"({"not":{"enum":["a","b"]},"type":"string"})", {R"("c")", R"("ab")"}, {R"("a")", "1"}},
    {R"({"not":{"const":true}})", {"false", "1", R"("x")"}, {"true"}},
    {R"({"type":"object","not":{"required":["a"]}})", {"{}", R"({"b":1})"}, {R"({"a":1})"}},
    // One of.
    {R"({"oneOf":[{"type":"object","properties":{"k":{"const":1}},"required":["k"]},{"type":"object","properties":{"k":{"const":2}},"required":["k"]}]})",
     {R"({"k":1})", R"({"k":2,"z":0})"},
     {R"({"k":3})", "{}"}},
    // Numbers.
    {R"({"type":"number","multipleOf":0.01,"minimum":0,"exclusiveMaximum":1})",
     {"0", "0.25", "0.9"},
     {"0.255", "1", "-0.5"}},
    {R"({"type":"integer","multipleOf":15,"maximum":-1})", {"-15", "-30"}, {"0", "15", "-20"}},
    // Strings.
    {R"({"type":"string","pattern":"^\\S+@\\S+$","maxLength":5})",
     {R"("a@b")"},
     {R"("a@bcde")", R"("ab")"}},
    {R"({"type":"string","maxLength":300})", {R"("abc")"}, {}},
    {R"({"enum":["é\n"]})", {R"("é\n")", "\"\\u00e9\\n\""}, {R"("e")"}},
    {R"({"type":"string","format":"date"})",
     {R"("2024-02-29")", R"("2000-02-29")"},
     {R"("2026-02-29")", R"("1900-02-29")", R"("2026-04-31")"}},
    {R"({"type":"string","format":"ipv6"})",
     {R"("::1")", R"("fe80::1:2")"},
     {R"(":::")", R"("1::2::3")"}},
    // Arrays.
    {R"({"type":"array","items":[{"type":"string"}],"additionalItems":false})",
     {"[]", R"(["a"])"},
     {R"(["a",1])", "[1]"}},
    {R"({"type":"array","uniqueItems":true,"maxItems":1})", {"[]", "[1]"}, {"[1,1]"}},
    {R"({"type":"array","items":{"type":"integer"},"minItems":100,"maxItems":101})", {}, {"[1,2]"}},
    {R"({"items":false})", {"[]", "1"}, {"[1]"}},
    {R"({"enum":[1,"a",[2]],"type":["string","array"]})", {R"("a")", "[2]"}, {"1"}},
};

TEST_F(SchemaGrammarTest, KeywordsHoldTogether) {
  for (const Case& one : kCases) {
    const auto matcher = Matcher(Spec(Kind::kJsonSchema, one.schema));
    ASSERT_TRUE(matcher.ok()) << one.schema << ": " << matcher.status();
    for (const std::string& text : one.takes) {
      EXPECT_TRUE(Takes(**matcher, text)) << one.schema << " on " << text;
    }
    for (const std::string& text : one.refuses) {
      EXPECT_FALSE(Takes(**matcher, text)) << one.schema << " on " << text;
    }
  }
}

TEST(SchemaErrors, NameTheKeyword) {
  const std::pair<const char*, const char*> kRefused[] = {
      {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
      {R"({"type":"array","contains":{"type":"integer"}})", "contains"},
      {R"({"unevaluatedProperties":false})", "unevaluatedProperties"},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "oneOf"},
      {R"({"not":{"pattern":"a"}})", "not"},
      {R"_({"type":"string","pattern":"(?=a)"})_", "pattern"},
      {R"({"type":"string","pattern":"x","maxLength":4000})", "maxLength"},
      {R"({"type":"string","format":"idn-email"})", "format"},
      {R"({"$ref":"http://example.com/x"})", "$ref"},
      {R"({"$ref":"#/$defs/none"})", "$ref"},
      {R"({"type":"integer","multipleOf":1000003})", "multipleOf"},
      {R"({"type":"number","multipleOf":0.3})", "multipleOf"},
      {R"({"type":"object","minProperties":5})", "minProperties"},
      {R"({"type":"strange"})", "type"},
      {R"({"properties":[]})", "properties"},
      {R"({"required":"a"})", "required"},
      {R"({"minLength":-1})", "minLength"},
      {R"({"minLength":1e30})", "minLength"},
      {R"({"minLength":0.5})", "minLength"},
      {R"({"enum":[{"a":[1]}],"properties":{"a":{"uniqueItems":"x"}}})", "uniqueItems"},
      {R"({"const":{"a":"b"},"additionalProperties":{"maxLength":"x"}})", "maxLength"},
      {R"({"enum":1})", "enum"},
      {R"({"anyOf":[]})", "anyOf"},
  };
  for (const auto& [schema, keyword] : kRefused) {
    const auto text = SchemaToEbnf(schema);
    ASSERT_FALSE(text.ok()) << schema;
    EXPECT_NE(text.status().message().find(std::string("`") + keyword + "`"), std::string::npos)
        << schema << ": " << text.status();
  }
}

TEST(SchemaErrors, ContradictionsAndJunkAreRefused) {
  for (const char* schema : {"", "[]", "{", "1", "false", R"({"type":"string","const":1})",
                             R"({"enum":[]})", R"({"type":"integer","minimum":2,"maximum":1})",
                             R"({"type":"object","required":["a"],"properties":{"a":false}})"}) {
    EXPECT_FALSE(SchemaToEbnf(schema).ok()) << schema;
  }
}

TEST(SchemaErrors, HostileSchemasEndSoon) {
  std::string nested = "true";
  for (int i = 0; i < 150; ++i) {
    nested = R"({"items":)" + nested + "}";
  }
  std::string wide = R"({"anyOf":[{}])";
  for (int i = 0; i < 20; ++i) {
    wide += R"(,"x)" + std::to_string(i) + R"(":1)";
  }
  std::string product = R"({"allOf":[)";
  for (int i = 0; i < 12; ++i) {
    product += std::string(i > 0 ? "," : "") + R"({"anyOf":[{"minimum":)" + std::to_string(i) +
               R"(},{"maxLength":)" + std::to_string(i) + "},{\"minItems\":1}]}";
  }
  product += "]}";
  for (
      const std::string& schema :
      {nested, product, std::string(100'000, '['),
       R"({"pattern":")" + std::string(5000, 'a') + "\"}",
       std::string(R"({"type":"array","minItems":1000000})"),
       std::string(
           R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"})")}) {
    const auto text = SchemaToEbnf(schema);
    EXPECT_TRUE(!text.ok() || text->size() <= EbnfWriter::kMaxBytes + 1000) << schema.substr(0, 60);
  }
}

}  // namespace
}  // namespace tandem::structured_output
