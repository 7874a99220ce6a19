#include "cli/bench/sse_parser.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using testing::ElementsAre;

TEST(SseParserTest, CutsEventsWhereverThePiecesEnd) {
  const std::string stream =
      "data: one\n\n: comment\nevent: x\ndata: two\r\ndata:three\r\n\r\n\n\ndata: [DONE]\n\n";
  for (size_t piece = 1; piece <= stream.size(); ++piece) {
    SseParser parser;
    std::vector<std::string> events;
    for (size_t at = 0; at < stream.size(); at += piece) {
      for (std::string& event : parser.Feed(std::string_view(stream).substr(at, piece))) {
        events.push_back(std::move(event));
      }
    }
    EXPECT_THAT(events, ElementsAre("one", "two\nthree", "[DONE]")) << piece;
    EXPECT_EQ(parser.pending_bytes(), 0u);
  }
}

TEST(SseParserTest, AnUnfinishedEventStaysPending) {
  SseParser parser;
  EXPECT_TRUE(parser.Feed("data: abc\n").empty());
  EXPECT_GT(parser.pending_bytes(), 0u);
  EXPECT_THAT(parser.Feed("\n"), ElementsAre("abc"));
}

}  // namespace
}  // namespace tandem::cli
