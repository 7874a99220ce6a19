#include "common/kv_layout/kv_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "common/base/bfloat16.h"

namespace tandem::kv {
namespace {

PoolGeometry Make(DType dtype, int32_t head_dim, int32_t block_tokens) {
  return {dtype, /*num_layers=*/2, /*num_kv_heads=*/3, head_dim, block_tokens};
}

std::vector<float> RandomRow(size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> row(count);
  for (float& value : row) {
    value = normal(random);
  }
  return row;
}

TEST(KvLayout, ElementOrderMatchesTheWrittenFormulas) {
  const PoolGeometry bf16 = Make(DType::kBFloat16, 80, 128);
  EXPECT_EQ(bf16.KElement(37, 7), 2u * 16 * 80 + 3 * 32 + 5 * 2 + 1);
  EXPECT_EQ(bf16.VElement(37, 7), 18u * 2 * 64 + 7 * 2 + 1);
  EXPECT_EQ(bf16.VElement(37, 70), 64u * 128 + 18 * 2 * 16 + 6 * 2 + 1);
  const PoolGeometry fp32 = Make(DType::kFloat32, 80, 16);
  EXPECT_EQ(fp32.KElement(13, 7), 7u * 16 + 13);
  EXPECT_EQ(fp32.VElement(13, 7), 13u * 80 + 7);
}

TEST(KvLayout, SizesIncludeScalesOfInt8Only) {
  EXPECT_EQ(Make(DType::kBFloat16, 64, 128).head_bytes(), 2u * 128 * 64 * 2);
  EXPECT_EQ(Make(DType::kInt8, 64, 128).k_tile_bytes(), 128u * 64 + 128 * 4);
  EXPECT_EQ(Make(DType::kFloat8E4M3, 64, 128).k_tile_bytes(), 128u * 64);
  const PoolGeometry geometry = Make(DType::kFloat32, 64, 16);
  EXPECT_EQ(geometry.block_bytes(), 2u * 3 * 2 * 16 * 64 * 4);
  EXPECT_EQ(geometry.HeadOffset(5, 1, 2),
            5 * geometry.block_bytes() + geometry.layer_bytes() + 2 * geometry.head_bytes());
}

TEST(KvLayout, EveryElementHasItsOwnPlaceInsideTheTile) {
  for (DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kInt8}) {
    for (int32_t head_dim : {16, 64, 80, 96, 128, 256}) {
      for (int32_t block_tokens : {16, 32, 128}) {
        const PoolGeometry geometry = Make(dtype, head_dim, block_tokens);
        std::set<size_t> k;
        std::set<size_t> v;
        for (int32_t t = 0; t < block_tokens; ++t) {
          for (int32_t d = 0; d < head_dim; ++d) {
            k.insert(geometry.KElement(t, d));
            v.insert(geometry.VElement(t, d));
          }
        }
        const auto count = static_cast<size_t>(block_tokens) * static_cast<size_t>(head_dim);
        EXPECT_EQ(k.size(), count);
        EXPECT_EQ(*k.rbegin(), count - 1);
        EXPECT_EQ(v.size(), count);
        EXPECT_EQ(*v.rbegin(), count - 1);
      }
    }
  }
}

TEST(KvLayout, StoredTokensComeBackAndTouchNothingElse) {
  std::mt19937_64 random(1);
  for (DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    for (int32_t head_dim : {16, 80, 128}) {
      const PoolGeometry geometry = Make(dtype, head_dim, 32);
      std::vector<std::byte> layer(geometry.layer_bytes(), std::byte{0xff});
      const size_t row = 3u * static_cast<size_t>(head_dim);
      std::vector<float> k[32];
      std::vector<float> v[32];
      for (int32_t t : {31, 0, 7, 16, 8}) {
        k[t] = RandomRow(row, random);
        v[t] = RandomRow(row, random);
        StoreToken(geometry, layer.data(), t, {k[t].data(), v[t].data(), DType::kFloat32});
      }
      std::vector<float> got_k(row);
      std::vector<float> got_v(row);
      for (int32_t t = 0; t < 32; ++t) {
        LoadToken(geometry, layer.data(), t, got_k.data(), got_v.data());
        for (size_t i = 0; i < row; ++i) {
          if (k[t].empty()) {
            EXPECT_TRUE(std::isnan(got_k[i]) && std::isnan(got_v[i]));
            continue;
          }
          const float tolerance = dtype == DType::kFloat32 ? 0.0f : 1.0f / 256;
          EXPECT_LE(std::abs(got_k[i] - k[t][i]), tolerance * std::abs(k[t][i]));
          EXPECT_LE(std::abs(got_v[i] - v[t][i]), tolerance * std::abs(v[t][i]));
        }
      }
    }
  }
}

TEST(KvLayout, RowsOfEveryTypeAreConverted) {
  const PoolGeometry geometry{DType::kFloat32, 1, 1, 16, 16};
  std::vector<std::byte> layer(geometry.layer_bytes());
  const std::vector<uint16_t> half(16, 0x3e00);  // 1.5
  const std::vector<uint16_t> bf16(16, base::FloatToBFloat16(1.5f));
  float k[16];
  float v[16];
  StoreToken(geometry, layer.data(), 3, {half.data(), half.data(), DType::kFloat16});
  LoadToken(geometry, layer.data(), 3, k, v);
  EXPECT_EQ(k[15], 1.5f);
  StoreToken(geometry, layer.data(), 4, {bf16.data(), bf16.data(), DType::kBFloat16});
  LoadToken(geometry, layer.data(), 4, k, v);
  EXPECT_EQ(v[15], 1.5f);
}

struct CopyCase {
  DType from;
  DType to;
  int32_t from_block;
  int32_t to_block;
  int64_t first;
  int64_t count;
};

class CopyTokensTest : public testing::TestWithParam<CopyCase> {};

TEST_P(CopyTokensTest, CopiesExactlyTheRun) {
  const CopyCase& param = GetParam();
  std::mt19937_64 random(7);
  const PoolGeometry from = Make(param.from, 80, param.from_block);
  const PoolGeometry to = Make(param.to, 80, param.to_block);
  constexpr int64_t kTokens = 256;
  std::vector<int32_t> from_table;
  std::vector<int32_t> to_table;
  for (int32_t i = 0; i < kTokens / param.from_block; ++i) from_table.push_back(i);
  for (int32_t i = 0; i < kTokens / param.to_block; ++i) to_table.push_back(i);
  std::shuffle(from_table.begin(), from_table.end(), random);
  std::shuffle(to_table.begin(), to_table.end(), random);
  std::vector<std::byte> source(from_table.size() * from.block_bytes());
  std::vector<std::byte> target(to_table.size() * to.block_bytes(), std::byte{0xff});
  const size_t row = 3 * 80;
  for (int64_t p = 0; p < kTokens; ++p) {
    std::vector<float> k = RandomRow(row, random);
    for (float& x : k) x = base::BFloat16ToFloat(base::FloatToBFloat16(x));
    const auto block = static_cast<size_t>(p / param.from_block);
    StoreToken(from, source.data() + from.LayerOffset(from_table[block], 1),
               static_cast<int32_t>(p % param.from_block), {k.data(), k.data(), DType::kFloat32});
  }
  CopyTokens({&from, source.data(), from_table, 1}, {&to, target.data(), to_table, 0}, param.first,
             param.count);
  std::vector<float> want(row), got(row), want_v(row), got_v(row);
  for (int64_t p = 0; p < kTokens; ++p) {
    LoadToken(from, source.data() + from.LayerOffset(from_table[p / param.from_block], 1),
              static_cast<int32_t>(p % param.from_block), want.data(), want_v.data());
    LoadToken(to, target.data() + to.LayerOffset(to_table[p / param.to_block], 0),
              static_cast<int32_t>(p % param.to_block), got.data(), got_v.data());
    const bool copied = p >= param.first && p < param.first + param.count;
    for (size_t i = 0; i < row; ++i) {
      ASSERT_EQ(std::isnan(got[i]), !copied) << "token " << p;
      ASSERT_TRUE(!copied || (got[i] == want[i] && got_v[i] == want_v[i])) << "token " << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, CopyTokensTest,
    testing::Values(CopyCase{DType::kBFloat16, DType::kBFloat16, 16, 128, 0, 256},
                    CopyCase{DType::kBFloat16, DType::kBFloat16, 128, 16, 0, 201},
                    CopyCase{DType::kBFloat16, DType::kBFloat16, 32, 64, 37, 101},
                    CopyCase{DType::kFloat32, DType::kFloat32, 16, 128, 5, 200},
                    CopyCase{DType::kFloat32, DType::kBFloat16, 16, 128, 0, 33},
                    CopyCase{DType::kBFloat16, DType::kFloat32, 128, 32, 120, 20},
                    CopyCase{DType::kBFloat16, DType::kBFloat16, 64, 128, 3, 0}));

TEST(KvLayout, RefusesWhatItCannotLayOut) {
  EXPECT_TRUE(ValidateGeometry(Make(DType::kBFloat16, 64, 16)).ok());
  EXPECT_EQ(ValidateGeometry(Make(DType::kInt8, 64, 128)).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ValidateGeometry(Make(DType::kFloat16, 64, 128)).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(ValidateGeometry(Make(DType::kFloat32, 72, 16)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidateGeometry(Make(DType::kFloat32, 272, 16)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ValidateGeometry(Make(DType::kFloat32, 64, 24)).code(),
            absl::StatusCode::kInvalidArgument);
  PoolGeometry geometry = Make(DType::kFloat32, 64, 16);
  geometry.num_layers = 0;
  EXPECT_EQ(ValidateGeometry(geometry).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::kv
