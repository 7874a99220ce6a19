#include "common/structured_output/number_language.h"

#include <gtest/gtest.h>

#include <random>

namespace tandem::structured_output {
namespace {

Decimal Number(const std::string& text) {
  const auto number = ParseDecimal(text);
  EXPECT_TRUE(number.ok()) << text;
  return number.value_or(Decimal());
}

TEST(Decimals, CompareExactly) {
  const char* ascending[] = {"-1e3",
                             "-12.5",
                             "-12.05",
                             "-0.001",
                             "0",
                             "1e-5",
                             "0.1",
                             "0.11",
                             "1",
                             "9.99",
                             "10",
                             "1.5e1",
                             "123456789012345678901"};
  for (size_t i = 0; i < std::size(ascending); ++i) {
    for (size_t j = 0; j < std::size(ascending); ++j) {
      const int order = Compare(Number(ascending[i]), Number(ascending[j]));
      EXPECT_EQ(order < 0, i < j) << ascending[i] << " " << ascending[j];
      EXPECT_EQ(order == 0, i == j) << ascending[i] << " " << ascending[j];
    }
  }
  EXPECT_EQ(Compare(Number("-0.0"), Number("0")), 0);
  EXPECT_EQ(Compare(Number("1.50"), Number("15e-1")), 0);
  EXPECT_FALSE(ParseDecimal("1e400").ok());
}

TEST(Numbers, IntegerRangesAreExact) {
  std::mt19937 random(20261130);
  for (int round = 0; round < 40; ++round) {
    int low = static_cast<int>(random() % 400) - 200;
    int high = low + static_cast<int>(random() % 300);
    NumberLimits limits;
    limits.only_integers = true;
    const bool has_low = round % 5 != 0;
    const bool has_high = round % 7 != 0;
    limits.min = has_low ? std::optional(Number(std::to_string(low))) : std::nullopt;
    limits.max = has_high ? std::optional(Number(std::to_string(high))) : std::nullopt;
    limits.multiple_of = round % 3 == 0 ? 7 : 0;
    const auto numbers = NumbersWithin(limits);
    ASSERT_TRUE(numbers.ok());
    for (int value = -1100; value <= 1100; ++value) {
      const bool expected = (!has_low || value >= low) && (!has_high || value <= high) &&
                            (limits.multiple_of == 0 || value % 7 == 0);
      EXPECT_EQ(numbers->Accepts(std::to_string(value)), expected)
          << value << " in " << low << " to " << high;
    }
    EXPECT_FALSE(numbers->Accepts("007"));
    EXPECT_FALSE(numbers->Accepts("7.0"));
    EXPECT_FALSE(numbers->Accepts("-"));
  }
}

TEST(Numbers, FractionsAreComparedExactly) {
  NumberLimits limits;
  limits.min = Number("-1.25");
  limits.max = Number("10.5");
  limits.max_is_allowed = false;
  const auto numbers = NumbersWithin(limits);
  ASSERT_TRUE(numbers.ok());
  for (const char* text :
       {"-1.25", "-1.250", "-1.2499", "-0.0", "0", "1", "9.999", "10", "10.4999", "10.0", "0.5"}) {
    EXPECT_TRUE(numbers->Accepts(text)) << text;
  }
  for (const char* text :
       {"-1.2501", "-2", "-10", "10.5", "10.50", "10.51", "11", "100", "1.", "00.5", ".5", "-"}) {
    EXPECT_FALSE(numbers->Accepts(text)) << text;
  }
}

TEST(Numbers, PowersOfTenLimitTheFraction) {
  NumberLimits limits;
  limits.max_fraction_digits = 2;
  const auto numbers = NumbersWithin(limits);
  ASSERT_TRUE(numbers.ok());
  EXPECT_TRUE(numbers->Accepts("-3.25"));
  EXPECT_FALSE(numbers->Accepts("3.251"));
}

TEST(Numbers, AnEmptyRangeAcceptsNothing) {
  NumberLimits limits;
  limits.min = Number("5");
  limits.max = Number("5");
  limits.max_is_allowed = false;
  EXPECT_TRUE(NumbersWithin(limits)->accepts_nothing());
}

}  // namespace
}  // namespace tandem::structured_output
