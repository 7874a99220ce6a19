#include "common/model_files/rope_factors.h"

#include <vector>

#include "gtest/gtest.h"

namespace tandem::model_files {
namespace {

std::vector<float> FloatFactors(const RopeShape& rope, int32_t head_dim) {
  const std::vector<double> factors = RopeFactors(rope, head_dim);
  return {factors.begin(), factors.end()};
}

RopeShape Llama3(double theta, double factor, double high, int32_t original) {
  RopeShape rope;
  rope.theta = theta;
  rope.scaling = RopeShape::Scaling::kLlama3;
  rope.factor = factor;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = high;
  rope.original_max_position = original;
  return rope;
}

void ExpectSame(const std::optional<RopeShape>& found, const RopeShape& wanted) {
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->scaling, wanted.scaling);
  EXPECT_DOUBLE_EQ(found->theta, wanted.theta);
  EXPECT_NEAR(found->factor, wanted.factor, 1e-5 * wanted.factor);
  EXPECT_NEAR(found->low_freq_factor, wanted.low_freq_factor, 1e-6);
  EXPECT_NEAR(found->high_freq_factor, wanted.high_freq_factor, 1e-3);
  EXPECT_EQ(found->original_max_position, wanted.original_max_position);
}

TEST(RopeFactorsTest, FindsPublishedLlama3Settings) {
  for (const double factor : {8.0, 32.0}) {
    for (const int32_t head_dim : {64, 128}) {
      const RopeShape rope = Llama3(500000.0, factor, 4.0, 8192);
      ExpectSame(RopeFromFactors(FloatFactors(rope, head_dim), rope.theta), rope);
    }
  }
}

TEST(RopeFactorsTest, SolvesForOtherSettings) {
  const RopeShape rope = Llama3(500000.0, 6.0, 5.0, 3000);
  ExpectSame(RopeFromFactors(FloatFactors(rope, 128), rope.theta), rope);
}

TEST(RopeFactorsTest, FewPairsBetweenTheWavelengthsFallBackToKnownSettings) {
  // With 8 pairs and this theta at most one lies between the two wavelengths.
  const RopeShape rope = Llama3(500000.0, 8.0, 4.0, 8192);
  const auto found = RopeFromFactors(FloatFactors(rope, 16), rope.theta);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(FloatFactors(*found, 16), FloatFactors(rope, 16));
}

TEST(RopeFactorsTest, FindsNoneAndLinear) {
  const auto none = RopeFromFactors(std::vector<float>(32, 1.0f), 10000.0);
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->scaling, RopeShape::Scaling::kNone);
  const auto linear = RopeFromFactors(std::vector<float>(32, 4.0f), 10000.0);
  ASSERT_TRUE(linear.has_value());
  EXPECT_EQ(linear->scaling, RopeShape::Scaling::kLinear);
  EXPECT_DOUBLE_EQ(linear->factor, 4.0);
}

TEST(RopeFactorsTest, RefusesWhatNoSettingGives) {
  std::vector<float> factors = FloatFactors(Llama3(500000.0, 8.0, 4.0, 8192), 128);
  factors[3] = 2.5f;
  EXPECT_FALSE(RopeFromFactors(factors, 500000.0).has_value());
  factors.assign(64, 0.0f);
  EXPECT_FALSE(RopeFromFactors(factors, 500000.0).has_value());
  factors.assign(64, std::numeric_limits<float>::quiet_NaN());
  EXPECT_FALSE(RopeFromFactors(factors, 500000.0).has_value());
}

}  // namespace
}  // namespace tandem::model_files
