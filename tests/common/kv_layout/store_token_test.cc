#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "common/base/bfloat16.h"
#include "tests/common/kv_layout/token_rows.h"

namespace tandem::kv {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargestBf16 = 0x1.fep127f;

// What a stored value may differ by, from the written rules; `top` is its row's largest magnitude.
double Tolerance(DType dtype, double value, double top) {
  switch (dtype) {
    case DType::kFloat32:
      return 0.0;
    case DType::kBFloat16:
      return std::abs(value) / 256;
    case DType::kInt8:
      return top / 127 * 0.5 * 1.00001;
    default:
      return std::max(std::abs(value) / 16, 0x1p-10);
  }
}

void ExpectNear(const PoolGeometry& geometry, const std::vector<float>& got,
                const std::vector<float>& want) {
  const auto dim = static_cast<size_t>(geometry.head_dim);
  for (size_t i = 0; i < want.size(); ++i) {
    const size_t head = i / dim * dim;
    double top = 0;
    for (size_t d = head; d < head + dim; ++d) {
      top = std::max(top, std::abs(double{want[d]}));
    }
    ASSERT_LE(std::abs(double{got[i]} - want[i]), Tolerance(geometry.dtype, want[i], top))
        << DTypeName(geometry.dtype) << " element " << i << ": " << got[i] << " for " << want[i];
  }
}

TEST(StoreToken, TokensComeBackAndTouchNothingElse) {
  std::mt19937_64 random(1);
  for (DType dtype : kPoolTypes) {
    for (int32_t head_dim : {16, 80, 128, 256}) {
      TestPool pool(Make(dtype, head_dim, 32), 32, random);
      const size_t size = RowSize(pool.geometry());
      std::vector<float> k[32];
      std::vector<float> v[32];
      for (int32_t t : {31, 0, 7, 16, 8}) {
        k[t] = RandomRow(size, random);
        v[t] = RandomRow(size, random);
        v[t][0] = 100.0f;  // K and V, and heads, have scales of their own
        pool.Store(1, t, {k[t].data(), v[t].data(), DType::kFloat32});
      }
      std::vector<float> got_k(size);
      std::vector<float> got_v(size);
      for (int32_t t = 0; t < 32; ++t) {
        pool.Load(1, t, got_k.data(), got_v.data());
        if (k[t].empty()) {
          for (size_t i = 0; i < size; ++i) {
            ASSERT_TRUE(std::isnan(got_k[i]) && std::isnan(got_v[i]));
          }
          continue;
        }
        ExpectNear(pool.geometry(), got_k, k[t]);
        ExpectNear(pool.geometry(), got_v, v[t]);
      }
    }
  }
}

TEST(StoreToken, RowsOfEveryTypeAreConverted) {
  std::mt19937_64 random(2);
  for (DType dtype : kPoolTypes) {
    TestPool pool({dtype, 1, 1, 16, 16}, 16, random);
    const std::vector<uint16_t> half(16, 0x3e00);  // 1.5
    const std::vector<uint16_t> bf16(16, base::FloatToBFloat16(1.5f));
    std::vector<float> k(16);
    std::vector<float> v(16);
    pool.Store(0, 3, {half.data(), half.data(), DType::kFloat16});
    pool.Load(0, 3, k.data(), v.data());
    EXPECT_FLOAT_EQ(k[15], 1.5f) << DTypeName(dtype);
    pool.Store(0, 4, {bf16.data(), bf16.data(), DType::kBFloat16});
    pool.Load(0, 4, k.data(), v.data());
    EXPECT_FLOAT_EQ(v[15], 1.5f) << DTypeName(dtype);
  }
}

TEST(StoreToken, TheSameRowGivesTheSameBits) {
  std::mt19937_64 random(3);
  for (DType dtype : kPoolTypes) {
    TestPool pool(Make(dtype, 96, 128), 128, random);
    std::vector<float> row = RandomRow(RowSize(pool.geometry()), random);
    row[5] = kNan;
    row[200] = kInfinity;
    pool.Store(0, 77, {row.data(), row.data(), DType::kFloat32});
    const std::vector<std::byte> once = pool.bytes();
    pool.Store(0, 77, {row.data(), row.data(), DType::kFloat32});
    EXPECT_EQ(pool.bytes(), once) << DTypeName(dtype);
  }
}

// A stored row, read and stored again, is the same: moves to and fro do not wear KV down.
TEST(StoreToken, StoringWhatWasLoadedChangesNoElement) {
  std::mt19937_64 random(4);
  for (DType dtype : kPoolTypes) {
    TestPool pool(Make(dtype, 128, 16), 16, random);
    const size_t size = RowSize(pool.geometry());
    const std::vector<float> row = RandomRow(size, random);
    pool.Store(0, 0, {row.data(), row.data(), DType::kFloat32});
    std::vector<float> k(size), v(size), again_k(size), again_v(size);
    pool.Load(0, 0, k.data(), v.data());
    for (int i = 0; i < 5; ++i) {
      pool.Load(0, 0, again_k.data(), again_v.data());
      pool.Store(0, 0, {again_k.data(), again_v.data(), DType::kFloat32});
    }
    pool.Load(0, 0, again_k.data(), again_v.data());
    for (size_t i = 0; i < size; ++i) {
      ASSERT_NEAR(again_k[i], k[i], std::abs(k[i]) * 1e-6) << DTypeName(dtype);
      ASSERT_NEAR(again_v[i], v[i], std::abs(v[i]) * 1e-6) << DTypeName(dtype);
    }
  }
}

TEST(StoreToken, RoundRowIsStoreAndLoad) {
  std::mt19937_64 random(8);
  for (DType dtype : kPoolTypes) {
    TestPool pool(Make(dtype, 80, 16), 16, random);
    std::vector<float> row = RandomRow(RowSize(pool.geometry()), random);
    row[100] = kInfinity;
    std::vector<float> k(row.size()), v(row.size());
    pool.Store(0, 3, {row.data(), row.data(), DType::kFloat32});
    pool.Load(0, 3, k.data(), v.data());
    RoundRow(dtype, 3, 80, row.data());
    EXPECT_EQ(row, k) << DTypeName(dtype);
  }
}

// One head of 16 dimensions with `first` in front of `rest`, stored and loaded.
std::vector<float> Stored(DType dtype, float first, float rest) {
  std::mt19937_64 random(5);
  TestPool pool({dtype, 1, 2, 16, 16}, 16, random);
  std::vector<float> row(32, rest);
  row[0] = first;
  std::fill(row.begin() + 16, row.end(), 0.25f);  // the other head
  std::vector<float> k(32), v(32);
  pool.Store(0, 9, {row.data(), row.data(), DType::kFloat32});
  pool.Load(0, 9, k.data(), v.data());
  EXPECT_EQ(std::memcmp(k.data(), v.data(), k.size() * sizeof(float)), 0);
  EXPECT_FLOAT_EQ(k[16], 0.25f);  // whatever the first head holds
  EXPECT_FLOAT_EQ(k[31], 0.25f);
  return k;
}

TEST(StoreToken, Int8OfZerosAndTinyValuesIsZero) {
  for (const float tiny : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min(),
                           -std::numeric_limits<float>::min(), 0x1.fffffep-120f}) {
    const std::vector<float> row = Stored(DType::kInt8, tiny, -tiny);
    EXPECT_EQ(row[0], 0.0f) << tiny;
    EXPECT_EQ(row[1], 0.0f) << tiny;
  }
  // From 2^-119 on, rows keep their relative precision.
  EXPECT_FLOAT_EQ(Stored(DType::kInt8, 0x1p-119f, -0x1p-119f)[1], -0x1p-119f);
}

TEST(StoreToken, Int8OfHugeValuesStaysFinite) {
  const std::vector<float> row = Stored(DType::kInt8, 3.0e38f, -1.5e38f);
  EXPECT_FLOAT_EQ(row[0], 3.0e38f);
  EXPECT_NEAR(row[1], -1.5e38f, 3.0e38f / 254 * 1.001f);
  for (const float huge : {std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_FLOAT_EQ(Stored(DType::kInt8, huge, 1.0f)[0], kLargestBf16);
    EXPECT_FLOAT_EQ(Stored(DType::kInt8, -huge, 1.0f)[0], -kLargestBf16);
    EXPECT_EQ(Stored(DType::kInt8, huge, 1.0f)[1], 0.0f);
  }
}

TEST(StoreToken, Int8WithANanIsNanInItsTokenAndHeadOnly) {
  for (const float rest : {1.0f, kInfinity}) {
    for (const float x : {kNan, -kNan}) {
      const std::vector<float> row = Stored(DType::kInt8, x, rest);  // checks the other head
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_TRUE(std::isnan(row[i])) << i;
      }
    }
  }
}

TEST(StoreToken, Float8SaturatesFlushesAndKeepsNan) {
  EXPECT_EQ(Stored(DType::kFloat8E4M3, kInfinity, -1e9f)[0], 448.0f);
  EXPECT_EQ(Stored(DType::kFloat8E4M3, kInfinity, -1e9f)[1], -448.0f);
  EXPECT_EQ(Stored(DType::kFloat8E4M3, 0x1p-11f, 0x1p-9f)[0], 0.0f);
  EXPECT_EQ(Stored(DType::kFloat8E4M3, 0x1p-11f, 0x1p-9f)[1], 0x1p-9f);
  const std::vector<float> row = Stored(DType::kFloat8E4M3, kNan, 3.0f);
  EXPECT_TRUE(std::isnan(row[0]));
  EXPECT_EQ(row[1], 3.0f);
}

TEST(StoreToken, DistinctTokensMayBeStoredConcurrently) {
  constexpr int32_t kTokens = 128;
  constexpr int kThreads = 4;
  std::mt19937_64 random(6);
  for (DType dtype : kPoolTypes) {
    TestPool one(Make(dtype, 80, kTokens), kTokens, random);
    TestPool many(Make(dtype, 80, kTokens), kTokens, random);
    std::vector<std::vector<float>> rows;
    for (int32_t t = 0; t < kTokens; ++t) {
      rows.push_back(RandomRow(RowSize(one.geometry()), random));
      one.Store(1, t, {rows.back().data(), rows.back().data(), DType::kFloat32});
    }
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int32_t t = thread; t < kTokens; t += kThreads) {  // neighbours on other threads
          const float* row = rows[static_cast<size_t>(t)].data();
          many.Store(1, t, {row, row, DType::kFloat32});
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(one.bytes(), many.bytes()) << DTypeName(dtype);
  }
}

}  // namespace
}  // namespace tandem::kv
