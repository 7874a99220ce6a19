#include "common/kv_layout/kv_layout.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/common/kv_layout/token_rows.h"

namespace tandem::kv {
namespace {

TEST(KvLayout, ElementOrderMatchesTheWrittenFormulas) {
  const PoolGeometry bf16 = Make(DType::kBFloat16, 80, 128);
  EXPECT_EQ(bf16.KElement(37, 7), 2u * 16 * 80 + 3 * 32 + 5 * 2 + 1);
  EXPECT_EQ(bf16.VElement(37, 7), 18u * 2 * 64 + 7 * 2 + 1);
  EXPECT_EQ(bf16.VElement(37, 70), 64u * 128 + 18 * 2 * 16 + 6 * 2 + 1);
  for (DType bytes : {DType::kInt8, DType::kFloat8E4M3}) {
    const PoolGeometry geometry = Make(bytes, 80, 128);
    EXPECT_EQ(geometry.KElement(37, 7), 2u * 16 * 80 + 1 * 64 + 5 * 4 + 3);
    EXPECT_EQ(geometry.VElement(37, 7), 9u * 4 * 64 + 7 * 4 + 1);
    EXPECT_EQ(geometry.VElement(39, 70), 64u * 128 + 9 * 4 * 16 + 6 * 4 + 3);
  }
  const PoolGeometry fp32 = Make(DType::kFloat32, 80, 16);
  EXPECT_EQ(fp32.KElement(13, 7), 7u * 16 + 13);
  EXPECT_EQ(fp32.VElement(13, 7), 13u * 80 + 7);
}

TEST(KvLayout, SizesIncludeScalesOfInt8Only) {
  EXPECT_EQ(Make(DType::kBFloat16, 64, 128).head_bytes(), 2u * 128 * 64 * 2);
  EXPECT_EQ(Make(DType::kInt8, 64, 128).k_tile_bytes(), 128u * 64 + 128 * 4);
  EXPECT_EQ(Make(DType::kInt8, 64, 128).scales_offset(), 128u * 64);
  EXPECT_EQ(Make(DType::kInt8, 64, 128).token_bytes(), 3u * 2 * (64 + 4));
  EXPECT_EQ(Make(DType::kFloat8E4M3, 64, 128).k_tile_bytes(), 128u * 64);
  EXPECT_EQ(Make(DType::kFloat8E4M3, 64, 128).token_bytes(), 3u * 2 * 64);
  const PoolGeometry geometry = Make(DType::kFloat32, 64, 16);
  EXPECT_EQ(geometry.block_bytes(), 2u * 3 * 2 * 16 * 64 * 4);
  EXPECT_EQ(geometry.HeadOffset(5, 1, 2),
            5 * geometry.block_bytes() + geometry.layer_bytes() + 2 * geometry.head_bytes());
}

TEST(KvLayout, EveryElementHasItsOwnPlaceInsideTheTile) {
  for (DType dtype : kPoolTypes) {
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

TEST(KvLayout, RefusesWhatItCannotLayOut) {
  for (DType dtype : kPoolTypes) {
    EXPECT_TRUE(ValidateGeometry(Make(dtype, 64, 16)).ok());
  }
  EXPECT_EQ(ValidateGeometry(Make(static_cast<DType>(77), 64, 128)).code(),
            absl::StatusCode::kUnimplemented);
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
