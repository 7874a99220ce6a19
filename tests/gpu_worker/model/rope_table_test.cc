#include "gpu_worker/model/rope_table.h"

#include <cmath>

#include "gpu_worker/device/host/host_device.h"
#include "gtest/gtest.h"

namespace tandem::gpu_worker::model {
namespace {

TEST(RopeTableTest, PlainFrequencies) {
  RopeShape rope;
  rope.theta = 500000.0;
  const auto frequencies = InverseFrequencies(rope, 64);
  ASSERT_EQ(frequencies.size(), 32u);
  EXPECT_EQ(frequencies[0], 1.0f);
  EXPECT_NEAR(frequencies[16], std::pow(500000.0, -0.5), 1e-9);
}

TEST(RopeTableTest, LinearScalingDividesAll) {
  RopeShape rope;
  rope.scaling = RopeShape::Scaling::kLinear;
  rope.factor = 4.0;
  EXPECT_EQ(InverseFrequencies(rope, 32)[0], 0.25f);
}

// Values of Llama 3.1 (factor 8, bands 1 and 4, 8192 original positions), worked out by hand: short
// wavelengths stay, long ones are divided, one between is blended.
TEST(RopeTableTest, Llama3ScalingByWavelength) {
  RopeShape rope;
  rope.theta = 500000.0;
  rope.scaling = RopeShape::Scaling::kLlama3;
  rope.factor = 8.0;
  rope.original_max_position = 8192;
  const auto scaled = InverseFrequencies(rope, 128);
  RopeShape plain_rope;
  plain_rope.theta = 500000.0;
  const auto plain = InverseFrequencies(plain_rope, 128);
  int kept = 0;
  int divided = 0;
  int blended = 0;
  for (size_t i = 0; i < scaled.size(); ++i) {
    const double wavelength = 2 * M_PI / plain[i];
    if (wavelength < 2048) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_NEAR(scaled[i], plain[i] / 8, 1e-6 * plain[i]);
      ++divided;
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8);
      ++blended;
    }
  }
  EXPECT_EQ(kept, 29);
  EXPECT_EQ(blended, 6);
  EXPECT_EQ(divided, 29);
}

TEST(RopeTableTest, FillsOnDemandUpToItsEnd) {
  auto device = device::CreateHostDevice({});
  auto table = RopeTable::Create(*device, RopeShape(), 16, 100);
  ASSERT_TRUE(table.ok());
  ASSERT_TRUE(table->Prepare(10).ok());
  ASSERT_TRUE(table->Prepare(5).ok());
  ASSERT_TRUE(table->Prepare(1000).ok());
  for (const int position : {0, 9, 10, 99}) {
    for (int i = 0; i < 8; ++i) {
      const double angle = position * std::pow(10000.0, -i / 8.0);
      EXPECT_NEAR(table->cos()[position * 8 + i], std::cos(angle), 1e-5);
      EXPECT_NEAR(table->sin()[position * 8 + i], std::sin(angle), 1e-5);
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_worker::model
