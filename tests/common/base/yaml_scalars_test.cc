#include "common/base/yaml_scalars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::base {
namespace {

using testing::HasSubstr;

std::string Fault(const std::string& text) {
  const auto scalars = ReadYamlScalars(text);
  return scalars.ok() ? "" : std::string(scalars.status().message());
}

TEST(YamlScalars, NestedMapsBecomePathsWithLines) {
  const auto scalars = ReadYamlScalars("a: 1\nb:\n  c: two  # why\n  d:\n    e: ''\n");
  ASSERT_TRUE(scalars.ok()) << scalars.status();
  ASSERT_EQ(scalars->size(), 3u);
  EXPECT_EQ((*scalars)[0].path, "a");
  EXPECT_EQ((*scalars)[0].line, 1);
  EXPECT_EQ((*scalars)[1].path, "b.c");
  EXPECT_EQ((*scalars)[1].text, "two");
  EXPECT_EQ((*scalars)[1].line, 3);
  EXPECT_EQ((*scalars)[2].path, "b.d.e");
  EXPECT_EQ((*scalars)[2].text, "");
}

TEST(YamlScalars, FaultsNameLineAndPath) {
  EXPECT_THAT(Fault("a: 1\nb: [1, 2]\n"), HasSubstr("line 2: b: needs a plain value"));
  EXPECT_THAT(Fault("a:\n"), HasSubstr("a: needs a plain value"));
  EXPECT_THAT(Fault("a:\n  b: 1\na.b: 2\n"), HasSubstr("line 3: a.b: given twice"));
  EXPECT_THAT(Fault("- 1\n"), HasSubstr("not a map"));
  EXPECT_THAT(Fault(""), HasSubstr("not a map"));
  EXPECT_THAT(Fault("a: {b: 1\n"), HasSubstr("line"));
  EXPECT_THAT(Fault("a: {b: {c: {d: {e: {f: {g: {h: {i: 1}}}}}}}}\n"),
              HasSubstr("too many levels"));
  EXPECT_THAT(Fault(std::string((1 << 20) + 1, '#')), HasSubstr("longer than"));
}

}  // namespace
}  // namespace tandem::base
