// `tandem text` as a program sees it: JSON lines in, JSON lines out.
#include "cli/text/text_command.h"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "cli/text/open_tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using Json = nlohmann::json;

struct Answers {
  int status = 0;
  std::vector<Json> answers;
};

Answers RunWith(const std::vector<std::string>& args, const std::string& input) {
  std::istringstream in(input);
  std::streambuf* old = std::cin.rdbuf(in.rdbuf());
  testing::internal::CaptureStdout();
  Answers run;
  run.status = RunText(args);
  std::istringstream out(testing::internal::GetCapturedStdout());
  std::cin.rdbuf(old);
  for (std::string line; std::getline(out, line);) {
    if (line.starts_with('{')) run.answers.push_back(Json::parse(line));
  }
  return run;
}

std::string TestFile(const std::string& name) { return std::string(TANDEM_TEST_DATA) + "/" + name; }

TEST(TextCommand, EncodesAndDecodes) {
  const std::string file = TestFile("goldens/llama3-like/tokenizer.json");
  const Answers encoded = RunWith({"encode", "--tokenizer", file},
                                  "{\"text\": \"Hello\", \"add_special\": true}\n\n{\"text\": 7}\n"
                                  "no json\n{\"text\": \"a\"}\n");
  EXPECT_EQ(encoded.status, 0);
  ASSERT_EQ(encoded.answers.size(), 4u);
  EXPECT_EQ(encoded.answers[0]["ids"], Json::parse("[763, 39, 68, 293, 78]"));
  EXPECT_TRUE(encoded.answers[1].contains("error"));
  EXPECT_TRUE(encoded.answers[2].contains("error"));
  EXPECT_EQ(encoded.answers[3]["ids"], Json::parse("[64]"));
  const Answers decoded = RunWith({"decode", "--tokenizer=" + file},
                                  "{\"ids\": [763, 39, 68], \"skip_special\": true}\n");
  ASSERT_EQ(decoded.answers.size(), 1u);
  EXPECT_EQ(decoded.answers[0], Json::parse(R"({"pieces": ["", "H", "e"], "flush": ""})"));
}

TEST(TextCommand, RendersAtAGivenTime) {
  const Answers run =
      RunWith({"render", "--now", "2026-07-05T09:04:03"},
              "{\"template\": \"{{ strftime_now('%d %b') }} {{ x }}\", \"variables\": {\"x\": 1}}\n"
              "{\"template\": \"{{ raise_exception('no') }}\", \"variables\": {}}\n"
              "{\"template\": \"{{\"}\n");
  ASSERT_EQ(run.answers.size(), 3u);
  EXPECT_EQ(run.answers[0]["output"], "05 Jul 1");
  EXPECT_EQ(run.answers[1]["error"], "raised");
  EXPECT_EQ(run.answers[1]["message"], "no");
  EXPECT_EQ(run.answers[2]["error"], "syntax");
}

TEST(TextCommand, FindsStopStrings) {
  const Answers run =
      RunWith({"stop"}, R"({"tokens": [{"hex": "61"}, {"hex": "5354"}, {"hex": "4f50"}],)"
                        R"( "stop": ["STOP"], "include_stop": false, "skip_special": true})"
                        "\n");
  ASSERT_EQ(run.answers.size(), 1u);
  EXPECT_EQ(run.answers[0]["emitted"], Json::parse(R"(["a", "", ""])"));
  EXPECT_EQ(run.answers[0]["finish"], "stop");
  EXPECT_EQ(run.answers[0]["tokens_used"], 3);
}

TEST(TextCommand, BadCommandLinesAreErrors) {
  EXPECT_EQ(RunWith({}, "").status, 2);
  EXPECT_EQ(RunWith({"shout"}, "").status, 2);
  EXPECT_EQ(RunWith({"encode"}, "").status, 2);
  EXPECT_EQ(RunWith({"encode", "--tokeniser", "x"}, "").status, 2);
  EXPECT_EQ(RunWith({"render", "--now", "noon"}, "").status, 2);
  EXPECT_EQ(RunWith({"grammar"}, "").status, 2);
  EXPECT_EQ(RunWith({"encode", "--tokenizer", TestFile("no such file")}, "").status, 1);
  EXPECT_EQ(RunWith({"--help"}, "").status, 0);
}

TEST(OpenTokenizer, KnowsFilesByTheirContent) {
  EXPECT_TRUE(OpenTokenizer(TestFile("goldens/llama2-like/tokenizer.model")).ok());
  EXPECT_TRUE(OpenTokenizer(TestFile("goldens/llama2-like/tokenizer.json")).ok());
  EXPECT_FALSE(OpenTokenizer(TestFile("goldens/llama2-like/model.safetensors")).ok());
  EXPECT_FALSE(OpenTokenizer(TestFile("goldens/README.md")).ok());
}

}  // namespace
}  // namespace tandem::cli
