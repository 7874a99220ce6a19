#include "router/frontend/tool_calls/output_parser.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

namespace tandem::tool_calls {
namespace {

struct Call {
  std::string name, arguments;
  bool operator==(const Call&) const = default;
};
void PrintTo(const Call& call, std::ostream* out) { *out << call.name << call.arguments; }

struct Result {
  std::string reasoning, content;
  std::vector<Call> calls;
};

// Feeds the text in pieces of `step` bytes.
Result Parse(const OutputParserOptions& options, const std::string& text, size_t step) {
  OutputParser parser(options);
  OutputDelta delta;
  for (size_t i = 0; i < text.size(); i += step) {
    parser.Append(std::string_view(text).substr(i, step), &delta);
  }
  parser.Finish(&delta);
  Result result{delta.reasoning, delta.content, {}};
  std::map<std::string, int> ids;
  for (const CallDelta& piece : delta.calls) {
    if (!piece.id.empty()) {
      EXPECT_EQ(piece.index, static_cast<int>(result.calls.size()));
      EXPECT_EQ(ids[piece.id]++, 0) << "an id is there twice";
      result.calls.push_back({piece.name, ""});
    }
    EXPECT_EQ(piece.index, static_cast<int>(result.calls.size()) - 1);
    result.calls.back().arguments += piece.arguments;
  }
  EXPECT_EQ(parser.calls(), static_cast<int>(result.calls.size()));
  return result;
}

struct Case {
  const char* what;
  Format format;
  bool enforced;
  std::string text, content;
  std::vector<Call> calls;
};

std::vector<Case> HermesCases() {
  const std::string weather = R"({"name": "weather", "arguments": {"city": "Oslo"}})";
  return {
      {"plain text", Format::kHermes, false, "Hello there. \n", "Hello there. \n", {}},
      {"one call",
       Format::kHermes,
       false,
       "<tool_call>\n" + weather + "\n</tool_call>",
       "",
       {{"weather", R"({"city": "Oslo"})"}}},
      {"text first",
       Format::kHermes,
       false,
       "I look.\n\n<tool_call>\n" + weather + "\n</tool_call>",
       "I look.",
       {{"weather", R"({"city": "Oslo"})"}}},
      {"two calls",
       Format::kHermes,
       false,
       "<tool_call>" + weather + "</tool_call>\n<tool_call>{\"name\":\"time\"}</tool_call>",
       "",
       {{"weather", R"({"city": "Oslo"})"}, {"time", "{}"}}},
      {"arguments first",
       Format::kHermes,
       false,
       R"(<tool_call>{"arguments": {"a": [1, "}"]}, "name": "f"}</tool_call>)",
       "",
       {{"f", R"({"a": [1, "}"]})"}}},
      {"arguments as text",
       Format::kHermes,
       false,
       R"(<tool_call>{"name": "f", "arguments": "{\"a\": \"\\u00e9\"}"}</tool_call>)",
       "",
       {{"f", "{\"a\": \"\\u00e9\"}"}}},
      {"no JSON in the tag",
       Format::kHermes,
       false,
       "<tool_call>no</tool_call> ok",
       "<tool_call>no</tool_call> ok",
       {}},
      {"cut in the tag", Format::kHermes, false, "a <tool_ca", "a <tool_ca", {}},
      {"cut before the name",
       Format::kHermes,
       false,
       "<tool_call>\n{\"na",
       "<tool_call>\n{\"na",
       {}},
      {"cut in the arguments",
       Format::kHermes,
       false,
       R"(<tool_call>{"name": "f", "arguments": {"a)",
       "",
       {{"f", "{\"a"}}},
      {"without the closing tag",
       Format::kHermes,
       false,
       "<tool_call>" + weather,
       "",
       {{"weather", R"({"city": "Oslo"})"}}},
  };
}

std::vector<Case> OtherCases() {
  const std::string weather = R"({"name": "weather", "arguments": {"city": "Oslo"}})";
  return {
      {"Llama's",
       Format::kLlama3,
       false,
       R"( {"name": "weather", "parameters": {"city": "Oslo"}})",
       "",
       {{"weather", R"({"city": "Oslo"})"}}},
      {"Llama's with its tag, two",
       Format::kLlama3,
       false,
       R"(<|python_tag|>{"name": "weather", "parameters": {}}; {"name": "time", "parameters": {}})",
       "",
       {{"weather", "{}"}, {"time", "{}"}}},
      {"JSON that is no call",
       Format::kLlama3,
       false,
       R"({"name": "Anna", "age": 5})",
       R"({"name": "Anna", "age": 5})",
       {}},
      {"text that goes on with JSON",
       Format::kLlama3,
       false,
       R"(So: {"name": "weather"})",
       R"(So: {"name": "weather"})",
       {}},
      {"Mistral's list",
       Format::kMistral,
       false,
       "[TOOL_CALLS] [" + weather + ", {\"name\": \"time\", \"arguments\": {}}]",
       "",
       {{"weather", R"({"city": "Oslo"})"}, {"time", "{}"}}},
      {"Mistral's newer form",
       Format::kMistral,
       false,
       R"(Well.[TOOL_CALLS]weather{"city": "Oslo"}[TOOL_CALLS]time[CALL_ID]abcdefghi[ARGS]{})",
       "Well.",
       {{"weather", R"({"city": "Oslo"})"}, {"time", "{}"}}},
      {"Mistral's, enforced",
       Format::kMistral,
       true,
       "[" + weather + "]",
       "",
       {{"weather", R"({"city": "Oslo"})"}}},
      {"no tools", Format::kNone, false, "<tool_call>" + weather, "<tool_call>" + weather, {}},
  };
}

TEST(OutputParserTest, CallsInPiecesOfAnySize) {
  std::vector<Case> cases = HermesCases();
  for (const Case& c : OtherCases()) {
    cases.push_back(c);
  }
  for (const Case& c : cases) {
    OutputParserOptions options;
    options.tools.format = c.format;
    options.tools.enforced = c.enforced;
    options.tools.names = {"weather", "time", "f"};
    options.tools.id_seed = "r1";
    for (size_t step : {1u, 2u, 3u, 7u, 1000u}) {
      const Result result = Parse(options, c.text, step);
      EXPECT_EQ(result.content, c.content) << c.what << ", " << step;
      EXPECT_EQ(result.calls, c.calls) << c.what << ", " << step;
    }
  }
}

// Whatever the model writes, it does not matter how it falls into pieces.
TEST(OutputParserTest, PiecesDoNotMatter) {
  static const std::vector<std::string> kFragments = {"<tool_call>",
                                                      "</tool_call>",
                                                      "[TOOL_CALLS]",
                                                      "<think>",
                                                      "</think>",
                                                      "<|python_tag|>",
                                                      "{",
                                                      "}",
                                                      "{\"name\": \"f\"",
                                                      "\"arguments\"",
                                                      "\"parameters\"",
                                                      ": {",
                                                      "[",
                                                      "]",
                                                      ",",
                                                      ";",
                                                      "\"",
                                                      "\\",
                                                      " ",
                                                      "\n",
                                                      "x",
                                                      "f",
                                                      "[ARGS]",
                                                      "<"};
  std::mt19937 random(7);
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (uint32_t i = random() % 14; i > 0; --i) {
      text += kFragments[random() % kFragments.size()];
    }
    OutputParserOptions options;
    options.splits_reasoning = random() % 2 == 0;
    options.starts_in_reasoning = random() % 4 == 0;
    options.tools.format = static_cast<Format>(random() % 4);
    options.tools.enforced = random() % 4 == 0;
    options.tools.names = {"f"};
    const Result whole = Parse(options, text, 1000);
    for (size_t step : {1u, 3u}) {
      const Result pieces = Parse(options, text, step);
      EXPECT_EQ(pieces.content, whole.content) << "round " << round << ": " << text;
      EXPECT_EQ(pieces.reasoning, whole.reasoning) << "round " << round << ": " << text;
      EXPECT_EQ(pieces.calls, whole.calls) << "round " << round << ": " << text;
    }
  }
}

TEST(OutputParserTest, FurtherCallsAreDroppedWhereOneIsAllowed) {
  OutputParserOptions options;
  options.tools.format = Format::kHermes;
  options.tools.max_calls = 1;
  const Result result = Parse(options,
                              R"(<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b",)"
                              R"("arguments": {"x": 1}}</tool_call>)",
                              5);
  EXPECT_EQ(result.calls, (std::vector<Call>{{"a", "{}"}}));
}

TEST(OutputParserTest, IdsAreOpenAisOrMistrals) {
  for (const auto& [format, prefix, size] :
       {std::tuple(Format::kHermes, "call_", 29u), std::tuple(Format::kMistral, "", 9u)}) {
    OutputParserOptions options;
    options.tools.format = format;
    options.tools.id_seed = "request";
    OutputParser parser(options);
    OutputDelta delta;
    parser.Append(format == Format::kHermes ? "<tool_call>{\"name\": \"f\"}" : "[TOOL_CALLS]f{}",
                  &delta);
    ASSERT_FALSE(delta.calls.empty());
    EXPECT_TRUE(delta.calls[0].id.starts_with(prefix));
    EXPECT_EQ(delta.calls[0].id.size(), size);
  }
}

TEST(OutputParserTest, Reasoning) {
  struct {
    bool inside;
    const char *text, *reasoning, *content;
  } const kCases[] = {
      {false, "<think>\nI think. \n</think>\n\nYes.", "I think.", "Yes."},
      {true, "I think.</think>Yes.", "I think.", "Yes."},
      {true, "\nnever ends <", "never ends <", ""},
      {false, "Plain <think>x</think>", "", "Plain <think>x</think>"},
      {false, " <thin", "", " <thin"},
      {false, "<think></think>a\n", "", "a\n"},
  };
  for (const auto& c : kCases) {
    OutputParserOptions options;
    options.splits_reasoning = true;
    options.starts_in_reasoning = c.inside;
    for (size_t step : {1u, 4u, 1000u}) {
      const Result result = Parse(options, c.text, step);
      EXPECT_EQ(result.reasoning, c.reasoning) << c.text << ", " << step;
      EXPECT_EQ(result.content, c.content) << c.text << ", " << step;
    }
  }
}

TEST(OutputParserTest, ContentIsNotHeldBack) {
  OutputParserOptions options;
  options.tools.format = Format::kHermes;
  OutputParser parser(options);
  OutputDelta delta;
  parser.Append("Hello <", &delta);
  EXPECT_EQ(delta.content, "Hello");
  parser.Append("b", &delta);
  EXPECT_EQ(delta.content, "Hello <b");
}

}  // namespace
}  // namespace tandem::tool_calls
