#include "gpu_worker/ops/pseudo_values.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "common/base/bfloat16.h"
#include "gtest/gtest.h"

namespace tandem::gpu_worker::ops::paced {
namespace {

TEST(PseudoRowsTest, RowsHoldOrdinaryNumbersAndDiffer) {
  constexpr int64_t kWidth = 100'000;  // more than is kept
  const PseudoRows rows(DType::kFloat32);
  std::vector<float> a(kWidth);
  std::vector<float> b(kWidth);
  rows.Write(1, kWidth, reinterpret_cast<std::byte*>(a.data()));
  rows.Write(2, kWidth, reinterpret_cast<std::byte*>(b.data()));
  EXPECT_NE(a, b);
  double sum = 0;
  for (const float value : a) {
    ASSERT_GE(std::abs(value), 0.5f);
    ASSERT_LT(std::abs(value), 1.0f);
    sum += value;
  }
  EXPECT_LT(std::abs(sum / kWidth), 0.05);  // both signs
  rows.Write(2, kWidth, reinterpret_cast<std::byte*>(a.data()));
  EXPECT_EQ(a, b);
}

TEST(PseudoRowsTest, SixteenBitTypesHaveTheSameRange) {
  constexpr int64_t kWidth = 1000;
  std::vector<uint16_t> bits(kWidth);
  PseudoRows(DType::kBFloat16).Write(3, kWidth, reinterpret_cast<std::byte*>(bits.data()));
  for (const uint16_t value : bits) {
    ASSERT_GE(std::abs(base::BFloat16ToFloat(value)), 0.5f);
    ASSERT_LT(std::abs(base::BFloat16ToFloat(value)), 1.0f);
  }
  PseudoRows(DType::kFloat16).Write(3, kWidth, reinterpret_cast<std::byte*>(bits.data()));
  for (const uint16_t value : bits) {
    ASSERT_EQ(value & 0x7C00, 0x3800);  // exponent of [0.5, 1)
  }
}

TEST(PseudoKvTest, TokensOfASequenceAreWrittenAndNoOthers) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    const kv::PoolGeometry pool{dtype, 3, 2, 32, kv::kCpuBlockTokens};
    ASSERT_TRUE(kv::ValidateGeometry(pool).ok());
    std::vector<std::byte> memory(4 * pool.block_bytes());
    const std::vector<int32_t> table = {2, 0};
    const PseudoKv values(pool);
    values.Write({&pool, memory.data(), table, 1}, 120, 20);
    std::vector<float> k(64);
    std::vector<float> v(64);
    for (int32_t layer = 0; layer < 3; ++layer) {
      for (int32_t position = 0; position < 256; ++position) {
        const auto block = table[static_cast<size_t>(position / 128)];
        kv::LoadToken(pool, memory.data() + pool.LayerOffset(block, layer), position % 128,
                      k.data(), v.data());
        const bool written = layer == 1 && position >= 120 && position < 140;
        for (size_t i = 0; i < k.size(); ++i) {
          ASSERT_EQ(k[i] != 0.0f, written) << position;
          ASSERT_EQ(v[i] != 0.0f, written) << position;
          ASSERT_LE(std::abs(k[i]), 1.01f);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::paced
