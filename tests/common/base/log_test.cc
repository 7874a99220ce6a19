#include "common/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace tandem::base {
namespace {

using testing::HasSubstr;

std::string Logged(LogLevel level, std::string_view message, LogFields fields) {
  testing::internal::CaptureStderr();
  Log(level, message, fields);
  return testing::internal::GetCapturedStderr();
}

TEST(Log, TextLineHasTimeLevelProcessAndFields) {
  ASSERT_TRUE(InitLogging("router", "info", "text").ok());
  const std::string line = Logged(LogLevel::kWarning, "late reply",
                                  {{"request_id", "r-1"}, {"count", 3}, {"why", "two words"}});
  EXPECT_THAT(line, testing::MatchesRegex("[-0-9T:.]+Z warning router: late reply request_id=r-1 "
                                          "count=3 why=\"two words\"\n"));
}

TEST(Log, JsonLineIsJsonWhateverTheValues) {
  ASSERT_TRUE(InitLogging("router", "debug", "json").ok());
  const std::string line =
      Logged(LogLevel::kDebug, "quote \" and \n and \xff and \xe2\x82\xac",
             {{"number", 1.5}, {"nan", std::numeric_limits<double>::quiet_NaN()}, {"yes", true}});
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["message"], "quote \" and \n and \xef\xbf\xbd and \xe2\x82\xac");
  EXPECT_EQ(json["process"], "router");
  EXPECT_EQ(json["level"], "debug");
  EXPECT_EQ(json["number"], 1.5);
  EXPECT_EQ(json["yes"], true);
  EXPECT_TRUE(json["nan"].is_string());
}

TEST(Log, NobodyForgesALine) {
  ASSERT_TRUE(InitLogging("router", "info", "text").ok());
  const std::string line =
      Logged(LogLevel::kInfo, "x\ny", {{"request_id", "a\n2026 error router: b"}});
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
}

TEST(Log, LevelsBelowTheThresholdAreDropped) {
  ASSERT_TRUE(InitLogging("router", "warning", "text").ok());
  EXPECT_EQ(Logged(LogLevel::kInfo, "quiet", {}), "");
  EXPECT_THAT(Logged(LogLevel::kError, "loud", {}), HasSubstr("loud"));
}

TEST(Log, BadSettingsNameWhatIsAllowed) {
  EXPECT_THAT(std::string(InitLogging("x", "loud", "text").message()),
              HasSubstr("debug, info, warning, error"));
  EXPECT_THAT(std::string(InitLogging("x", "info", "xml").message()), HasSubstr("text, json"));
  ASSERT_TRUE(InitLogging("test", "info", "text").ok());
}

}  // namespace
}  // namespace tandem::base
