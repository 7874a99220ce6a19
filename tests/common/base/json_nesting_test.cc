#include "common/base/json_nesting.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::base {
namespace {

TEST(JsonNesting, CountsWhatIsOpenAtOnce) {
  EXPECT_FALSE(NestsDeeperThan("", 0));
  EXPECT_FALSE(NestsDeeperThan("12", 0));
  EXPECT_TRUE(NestsDeeperThan("[]", 0));
  EXPECT_FALSE(NestsDeeperThan(R"({"a":[1],"b":[[2]]})", 3));
  EXPECT_TRUE(NestsDeeperThan(R"({"a":[1],"b":[[2]]})", 2));
  EXPECT_TRUE(NestsDeeperThan(std::string(100'000, '['), 200));
}

TEST(JsonNesting, BracketsInStringsAreText) {
  EXPECT_FALSE(NestsDeeperThan(R"(["[[[{{{"])", 1));
  EXPECT_FALSE(NestsDeeperThan(R"(["\"[[", "\\"])", 1));
  EXPECT_TRUE(NestsDeeperThan(R"(["\\", [[]]])", 2));
}

TEST(JsonNesting, MalformedTextEnds) {
  EXPECT_FALSE(NestsDeeperThan("]]]]", 1));
  EXPECT_FALSE(NestsDeeperThan("\"never closed [[[", 1));
  EXPECT_FALSE(NestsDeeperThan("\"\\", 1));
}

}  // namespace
}  // namespace tandem::base
