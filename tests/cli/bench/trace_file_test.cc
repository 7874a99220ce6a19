#include "cli/bench/trace_file.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

TEST(TraceFileTest, ReadsDatesWithFractions) {
  const auto trace = ParseTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 23:59:59.5000000,374,44\r\n"
      "2023-11-17 00:00:00.2500000,396,109\r\n\r\n",
      0);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].arrival_us, 0);
  EXPECT_EQ((*trace)[1].arrival_us, 750000);
  EXPECT_EQ((*trace)[1].prompt_tokens, 396);
  EXPECT_EQ((*trace)[1].output_tokens, 109);
}

TEST(TraceFileTest, ColumnsGoByNameAndTimestampsMayBeAbsentOrSeconds) {
  const auto without = ParseTrace("output_tokens,x,prompt_tokens\n0,9,5\n7,9,6", 0);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE((*without)[0].arrival_us.has_value());
  EXPECT_EQ((*without)[0].output_tokens, 1) << "a request gives a token at least";
  EXPECT_EQ((*without)[1].prompt_tokens, 6);
  const auto seconds = ParseTrace("TIMESTAMP,prompt_tokens,output_tokens\n10.5,1,1\n12,1,1", 0);
  ASSERT_TRUE(seconds.ok()) << seconds.status();
  EXPECT_EQ((*seconds)[1].arrival_us, 1500000);
}

TEST(TraceFileTest, StopsAfterTheWantedRequests) {
  EXPECT_EQ(ParseTrace("prompt_tokens,output_tokens\n1,1\n2,2\nbroken", 2)->size(), 2u);
}

TEST(TraceFileTest, ErrorsNameLineAndColumn) {
  const struct {
    const char* text;
    const char* message;
  } cases[] = {
      {"", "no requests"},
      {"prompt_tokens,output_tokens\n", "no requests"},
      {"prompt_tokens\n1", "output_tokens"},
      {"output_tokens\n1", "prompt_tokens"},
      {"prompt_tokens,output_tokens\n1,1\n1", "line 3: column 2"},
      {"prompt_tokens,output_tokens\n-1,1", "line 2: column 1"},
      {"prompt_tokens,output_tokens\n99999999999999999999,1", "line 2: column 1"},
      {"TIMESTAMP,prompt_tokens,output_tokens\nnever,1,1", "line 2: TIMESTAMP"},
      {"TIMESTAMP,prompt_tokens,output_tokens\n2023-13-01 00:00:00,1,1", "line 2: TIMESTAMP"},
      {"TIMESTAMP,prompt_tokens,output_tokens\n2023-02-29 00:00:00,1,1", "line 2: TIMESTAMP"},
      {"prompt_tokens,prompt_tokens,output_tokens\n1,1,1", "column prompt_tokens twice"},
      {"prompt_tokens,output_tokens\n1,1,1", "line 2: 3 columns"},
  };
  for (const auto& test : cases) {
    const auto trace = ParseTrace(test.text, 0);
    ASSERT_FALSE(trace.ok()) << test.text;
    EXPECT_THAT(std::string(trace.status().message()), HasSubstr(test.message));
  }
  EXPECT_THAT(std::string(ReadTrace("/nowhere.csv", 0).status().message()),
              HasSubstr("/nowhere.csv"));
  EXPECT_THAT(std::string(ReadTrace("/", 0).status().message()), HasSubstr("/: cannot be read"));
}

}  // namespace
}  // namespace tandem::cli
