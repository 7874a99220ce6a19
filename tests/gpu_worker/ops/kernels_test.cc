#include "gpu_worker/ops/host/kernels.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/base/bfloat16.h"
#include "gtest/gtest.h"

namespace tandem::gpu_worker::ops::host {
namespace {

// Every compiled set of kernels that this machine can run, against the same references.
std::vector<const Kernels*> Runnable() {
  std::vector<const Kernels*> all = {&BaselineKernels()};
  const std::string best = BestKernels().name;
  if (best != "baseline") {
    all.push_back(&Avx2Kernels());
  }
  if (best == "avx512") {
    all.push_back(&Avx512Kernels());
  }
  return all;
}

std::vector<float> Random(size_t count) {
  static std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

TEST(KernelsTest, BFloat16RoundsAsTheReference) {
  std::vector<float> values = Random(1003);
  values[0] = std::numeric_limits<float>::quiet_NaN();
  values[1] = std::numeric_limits<float>::infinity();
  values[2] = -std::numeric_limits<float>::max();
  values[3] = 1.00390625f;  // half way, to even
  values[4] = -0.0f;
  for (const Kernels* kernels : Runnable()) {
    std::vector<uint16_t> out(values.size());
    std::vector<float> back(values.size());
    kernels->float_to_bf16(values.data(), static_cast<int64_t>(values.size()), out.data());
    kernels->bf16_to_float(out.data(), static_cast<int64_t>(out.size()), back.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(out[i], base::FloatToBFloat16(values[i])) << kernels->name << " " << values[i];
      if (i > 0) {
        ASSERT_EQ(back[i], base::BFloat16ToFloat(out[i]));
      }
    }
  }
}

TEST(KernelsTest, SiluIsAccurateOverItsRange) {
  std::vector<float> gate;
  for (float x = -100.0f; x < 100.0f; x += 0.0371f) {
    gate.push_back(x);
  }
  const std::vector<float> up(gate.size(), 1.0f);
  for (const Kernels* kernels : Runnable()) {
    std::vector<float> out(gate.size());
    kernels->silu_mul_f32(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double expected = gate[i] / (1 + std::exp(-double{gate[i]}));
      ASSERT_NEAR(out[i], expected, 1e-6 * std::abs(expected) + 1e-35) << kernels->name;
    }
  }
}

// Within what rounding to bfloat16 costs (2^-8), whatever is left over of a register.
TEST(KernelsTest, SiluInBFloat16IsAccurate) {
  for (const size_t count : {1, 15, 16, 1536, 1543}) {
    std::vector<uint16_t> gate;
    std::vector<uint16_t> up;
    for (size_t i = 0; i < count; ++i) {
      gate.push_back(base::FloatToBFloat16(100.0f * std::sin(static_cast<float>(i))));
      up.push_back(base::FloatToBFloat16(1.0f + static_cast<float>(i % 7)));
    }
    for (const Kernels* kernels : Runnable()) {
      std::vector<uint16_t> out(count + 1, 0x4242);
      kernels->silu_mul_bf16(gate.data(), up.data(), static_cast<int64_t>(count), out.data());
      for (size_t i = 0; i < count; ++i) {
        const double x = base::BFloat16ToFloat(gate[i]);
        const double expected = x / (1 + std::exp(-x)) * base::BFloat16ToFloat(up[i]);
        ASSERT_NEAR(base::BFloat16ToFloat(out[i]), expected, 0.004 * std::abs(expected) + 1e-33)
            << kernels->name << " " << x;
      }
      EXPECT_EQ(out[count], 0x4242) << kernels->name;
    }
  }
}

TEST(KernelsTest, AttendTileMasksAndCarriesItsState) {
  constexpr int32_t kDim = 48;
  constexpr int32_t kQueries = 16;
  const std::vector<float> q = Random(kQueries * kDim);
  const std::vector<float> keys = Random(100 * kDim);
  const std::vector<float> values = Random(100 * kDim);
  for (const Kernels* kernels : Runnable()) {
    std::vector<float> scores(kQueries * kMaxKeyTile);
    std::vector<float> max(kQueries, -3e38f);
    std::vector<float> sum(kQueries, 0.0f);
    std::vector<float> acc(kQueries * kDim, 0.0f);
    for (int32_t first = 0; first < 100; first += kMaxKeyTile) {
      const int32_t count = std::min(kMaxKeyTile, 100 - first);
      // Unused keys are NaN and must not reach a result.
      std::vector<float> tiles(kMaxKeyTile * kDim, std::numeric_limits<float>::quiet_NaN());
      std::vector<float> v(kMaxKeyTile * kDim, 0.0f);
      for (int32_t t = 0; t < count; ++t) {
        for (int32_t d = 0; d < kDim; ++d) {
          tiles[(t / 16 * kDim + d) * 16 + t % 16] = keys[(first + t) * kDim + d];
          v[t * kDim + d] = values[(first + t) * kDim + d];
        }
      }
      const float* sub_tiles[kMaxKeyTile / kKeySubTile];
      for (int i = 0; i < kMaxKeyTile / kKeySubTile; ++i) {
        sub_tiles[i] = tiles.data() + i * 16 * kDim;
      }
      std::vector<int32_t> visible(kQueries);
      for (int32_t i = 0; i < kQueries; ++i) {
        visible[i] = std::clamp(i * 6 + 1 - first, 0, count);
      }
      AttendTile tile{q.data(),       kQueries,      kDim,       sub_tiles,  v.data(),  count,
                      visible.data(), scores.data(), max.data(), sum.data(), acc.data()};
      kernels->attend_tile(tile);
    }
    for (int32_t i = 0; i < kQueries; ++i) {
      std::vector<double> expected(kDim, 0.0);
      double total = 0;
      for (int32_t t = 0; t < std::min(i * 6 + 1, 100); ++t) {
        double score = 0;
        for (int32_t d = 0; d < kDim; ++d) {
          score += double{q[i * kDim + d]} * keys[t * kDim + d];
        }
        const double weight = std::exp(score);
        total += weight;
        for (int32_t d = 0; d < kDim; ++d) {
          expected[d] += weight * values[t * kDim + d];
        }
      }
      for (int32_t d = 0; d < kDim; ++d) {
        ASSERT_NEAR(acc[i * kDim + d] / sum[i], expected[d] / total, 1e-5)
            << kernels->name << " query " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::host
