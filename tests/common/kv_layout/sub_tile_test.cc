#include "common/kv_layout/sub_tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "common/base/bfloat16.h"
#include "tests/common/kv_layout/token_rows.h"

namespace tandem::kv {
namespace {

std::vector<const SubTileKernels*> Runnable() {
  std::vector<const SubTileKernels*> found = {&BaselineSubTileKernels()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    found.push_back(&Avx2SubTileKernels());
  }
#endif
  if (&BestSubTileKernels() != found.back()) {
    found.push_back(&BestSubTileKernels());
  }
  return found;
}

std::vector<float> Values(size_t count, std::mt19937_64& random) {
  std::vector<float> values = RandomRow(count, random);
  const float specials[] = {0.0f,
                            -0.0f,
                            1e-40f,
                            3e38f,
                            -1e-38f,
                            0x1p-119f,
                            448.0f,
                            1e5f,
                            std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()};
  for (size_t i = 0; i < count / 97; ++i) {
    values[random() % count] = specials[random() % std::size(specials)];
  }
  return values;
}

struct Result {
  std::vector<std::byte> bytes;  // what was packed
  std::vector<float> scales;
  std::vector<float> floats;  // what was unpacked from it
};

Result RunAll(const SubTileCodec& codec, int32_t head_dim, const std::vector<float>& values) {
  const auto dim = static_cast<size_t>(head_dim);
  constexpr int32_t kBlock = 64;
  Result result;
  result.bytes.assign((16 + kBlock + 1) * dim * sizeof(float), std::byte{0});
  result.scales.assign(33, 0.0f);
  result.floats.assign(2 * 16 * dim, 0.0f);
  std::byte* k = result.bytes.data();
  std::byte* v = k + 16 * dim * sizeof(float);
  std::byte* row = v + kBlock * dim * sizeof(float);
  codec.pack_k(values.data(), head_dim, k, result.scales.data());
  const SubTilePlace place{head_dim, kBlock, 32};
  codec.pack_v(values.data(), place, v, &result.scales[16]);
  result.scales[32] = codec.pack_row(values.data(), head_dim, row);
  codec.unpack_k(k, result.scales.data(), head_dim, result.floats.data());
  codec.unpack_v(v, &result.scales[16], place, &result.floats[16 * dim]);
  return result;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(SubTile, EveryInstructionSetGivesTheSameBits) {
  std::mt19937_64 random(21);
  for (DType dtype : kPoolTypes) {
    for (int32_t head_dim = 16; head_dim <= 256; head_dim += 16) {
      for (int i = 0; i < 4; ++i) {
        const std::vector<float> values = Values(16 * static_cast<size_t>(head_dim), random);
        const Result want = RunAll(BaselineSubTileKernels().codec(dtype), head_dim, values);
        for (const SubTileKernels* kernels : Runnable()) {
          const Result got = RunAll(kernels->codec(dtype), head_dim, values);
          ASSERT_EQ(got.bytes, want.bytes) << kernels->name << " " << DTypeName(dtype);
          ASSERT_TRUE(SameBits(got.scales, want.scales)) << kernels->name;
          ASSERT_TRUE(SameBits(got.floats, want.floats)) << kernels->name << DTypeName(dtype);
        }
      }
    }
  }
}

TEST(SubTile, SixteenBitRowsAreWidenedExactly) {
  std::vector<uint16_t> codes(1 << 16);
  std::vector<float> got(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint16_t>(i);
  }
  const auto same = [](float a, float b) {
    return std::isnan(a) ? std::isnan(b) : std::memcmp(&a, &b, sizeof(a)) == 0;
  };
  for (const SubTileKernels* kernels : Runnable()) {
    kernels->widen_float16(codes.data(), static_cast<int32_t>(codes.size()), got.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      ASSERT_TRUE(same(got[i], base::HalfToFloat(codes[i]))) << kernels->name << " " << i;
    }
    kernels->widen_bfloat16(codes.data(), static_cast<int32_t>(codes.size()), got.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      ASSERT_TRUE(same(got[i], base::BFloat16ToFloat(codes[i]))) << kernels->name << " " << i;
    }
  }
}

}  // namespace
}  // namespace tandem::kv
