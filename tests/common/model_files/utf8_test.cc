#include "common/model_files/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace tandem::model_files {
namespace {

TEST(Utf8Test, AcceptsWellFormedText) {
  for (const char* text : {"", "plain", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  EXPECT_TRUE(IsUtf8(absl::string_view("\0", 1)));
}

TEST(Utf8Test, RefusesTheRest) {
  for (const char* text :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xc2", "\xc2 ", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "a\xf0\x90\x80"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
}

}  // namespace
}  // namespace tandem::model_files
