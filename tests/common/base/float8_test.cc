#include "common/base/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tandem::base {
namespace {

// By the definition of the format.
double Value(int code) {
  const int exponent = (code >> 3) & 0xf;
  const int mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

TEST(Float8Test, EveryCodeHasItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const float value = Float8E4M3ToFloat(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(value, Value(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    EXPECT_EQ(FloatToFloat8E4M3(value), code);
  }
}

TEST(Float8Test, RoundsToTheNearestAndTiesToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((Value(code) + Value(code + 1)) / 2);
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(FloatToFloat8E4M3(middle), code % 2 == 0 ? code : code + 1) << code;
    EXPECT_EQ(FloatToFloat8E4M3(std::nextafter(middle, 0.0f)), code) << code;
    EXPECT_EQ(FloatToFloat8E4M3(std::nextafter(middle, infinity)), code + 1) << code;
    EXPECT_EQ(FloatToFloat8E4M3(-middle), 0x80 + (code % 2 == 0 ? code : code + 1)) << code;
  }
}

TEST(Float8Test, SaturatesAndKeepsNan) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float large : {448.0f, 449.0f, 464.0f, 1e6f, 3.4e38f, infinity}) {
    EXPECT_EQ(FloatToFloat8E4M3(large), 0x7e) << large;
    EXPECT_EQ(FloatToFloat8E4M3(-large), 0xfe) << large;
  }
  EXPECT_EQ(FloatToFloat8E4M3(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(FloatToFloat8E4M3(-0.0f), 0x80);
  EXPECT_EQ(FloatToFloat8E4M3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

}  // namespace
}  // namespace tandem::base
