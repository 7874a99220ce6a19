#include <cmath>
#include <cstring>
#include <limits>

#include "tests/gpu_worker/ops/cuda/paged_batch.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

// Numbers of every size, with what no format holds.
std::vector<float> OddFloats(std::mt19937& random, size_t count) {
  std::vector<float> values = RandomFloats(random, count);
  std::uniform_int_distribution<int> exponent(-140, 120);
  std::uniform_int_distribution<size_t> at(0, count - 1);
  for (size_t i = 0; i < count / 4; ++i) {
    values[at(random)] = std::ldexp(RandomFloats(random, 1)[0], exponent(random));
  }
  values[at(random)] = std::numeric_limits<float>::infinity();
  values[at(random)] = std::numeric_limits<float>::quiet_NaN();
  values[at(random)] = -0.0f;
  return values;
}

bool SameBytes(Guarded& a, Guarded& b) {
  return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

constexpr ElementType kKeptTypes[] = {ElementType::kFloat32, ElementType::kBFloat16,
                                      ElementType::kInt8, ElementType::kFloat8E4M3};

// Bytes equal to those of the host's functions, for every type that a pool may round to.
TEST(CudaKvTest, StoreEqualsTheHostsBitByBit) {
  std::mt19937 random(11);
  ShimLauncher launcher;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const ElementType kept_as : kKeptTypes) {
      for (const int32_t head_dim : {16, 80, 128}) {
        const kv::PoolGeometry geometry{dtype, 2, 2, head_dim, 32};
        TestPool pool(random, geometry, 4);
        TestPool expected(random, geometry, 4);
        const auto stride = static_cast<size_t>(3 + 2 * 2) * static_cast<size_t>(head_dim);
        const auto values = OddFloats(random, 22 * stride);
        Guarded qkv(values);
        TestRuns runs;
        const auto first = pool.Take(40);
        const auto second = pool.Take(20);
        runs.Add({3, 18, 21}, first);
        runs.Add({21, 1, 0}, second);
        StoreKvParams params{
            {qkv.as<float>(), 3, 2, head_dim}, runs.Params(), pool.Params(1), kept_as};
        ASSERT_TRUE(StoreKv(launcher, nullptr, params).ok());
        const bool is_rounded = HostType(kept_as) != dtype && kept_as != ElementType::kFloat32;
        for (int32_t i = 0; i < 19; ++i) {
          const int32_t position = i < 18 ? 21 + i : 0;
          const auto& table = i < 18 ? first : second;
          std::vector<float> row(
              values.begin() + static_cast<int64_t>((3 + static_cast<size_t>(i)) * stride) +
                  3 * head_dim,
              values.begin() + static_cast<int64_t>((4 + static_cast<size_t>(i)) * stride));
          if (is_rounded) {
            kv::RoundRow(HostType(kept_as), 4, head_dim, row.data());
          }
          kv::StoreToken(geometry, expected.Layer(table[static_cast<size_t>(position / 32)], 1),
                         position % 32, {row.data(), row.data() + 2 * head_dim, DType::kFloat32});
        }
        ASSERT_TRUE(SameBytes(pool.memory(), expected.memory()))
            << DTypeName(dtype) << " kept as " << TypeName(kept_as) << " " << head_dim;
      }
    }
  }
}

struct CopyCase {
  ElementType from;
  ElementType to;
  int32_t from_block;
  int32_t to_block;
  int32_t head_dim;
};

// Copies pieces that begin and end anywhere, of some of the heads.
void ExpectCopiesEqualTheHosts(const CopyCase& c, std::mt19937& random) {
  SCOPED_TRACE(testing::Message() << TypeName(c.from) << " to " << TypeName(c.to) << ", heads of "
                                  << c.head_dim << ", blocks of " << c.from_block);
  ShimLauncher launcher;
  const kv::PoolGeometry from_geometry{HostType(c.from), 2, 3, c.head_dim, c.from_block};
  const kv::PoolGeometry to_geometry{HostType(c.to), 3, 2, c.head_dim, c.to_block};
  TestPool from(random, from_geometry, 12);
  TestPool to(random, to_geometry, 12);
  TestPool expected(random, to_geometry, 12);
  const auto from_table = from.Take(150);
  const auto to_table = to.Take(150);
  for (int32_t t = 0; t < 150; ++t) {
    const auto row = OddFloats(random, static_cast<size_t>(6 * c.head_dim));
    kv::StoreToken(from_geometry, from.Layer(from_table[static_cast<size_t>(t / c.from_block)], 1),
                   t % c.from_block, {row.data(), row.data() + 3 * c.head_dim, DType::kFloat32});
  }
  for (const auto& [first, count] :
       {std::pair(0, 16), std::pair(16, 5), std::pair(21, 100), std::pair(121, 29)}) {
    CopyKvParams params;
    params.from = from.Params(1);
    params.to = to.Params(2);
    params.from_table = from_table.data();
    params.to_table = to_table.data();
    params.from_first_head = 1;
    params.to_first_head = 0;
    params.num_heads = 2;
    params.first = first;
    params.count = count;
    ASSERT_TRUE(CopyKv(launcher, nullptr, params).ok());
    kv::CopyTokens({&from_geometry, from.memory().data(), from_table, 1, 1},
                   {&to_geometry, expected.memory().data(), to_table, 2, 0}, first, count);
    ASSERT_TRUE(SameBytes(to.memory(), expected.memory())) << first << " " << count;
  }
}

TEST(CudaKvTest, CopiesEqualTheHostsBitByBit) {
  std::mt19937 random(12);
  for (const int32_t head_dim : {16, 80, 96, 256}) {
    for (const ElementType device : {ElementType::kFloat32, ElementType::kBFloat16}) {
      for (const ElementType host : kKeptTypes) {
        ExpectCopiesEqualTheHosts({device, host, 16, 128, head_dim}, random);
        ExpectCopiesEqualTheHosts({host, device, 128, 16, head_dim}, random);
      }
      ExpectCopiesEqualTheHosts({device, device, 16, 32, head_dim}, random);
    }
  }
}

TEST(CudaKvTest, ImpossiblePoolsAreRefused) {
  std::mt19937 random(13);
  ShimLauncher launcher;
  TestPool pool(random, {DType::kInt8, 1, 1, 64, 16}, 1);
  StoreKvParams store;
  store.runs.total_rows = 1;
  store.pool = pool.Params(0);
  EXPECT_NE(StoreKv(launcher, nullptr, store).message().find("float32 or bfloat16"),
            std::string::npos);
  CopyKvParams copy;
  copy.count = 1;
  copy.from = copy.to = pool.Params(0);
  copy.num_heads = 2;
  EXPECT_NE(CopyKv(launcher, nullptr, copy).message().find("num_heads"), std::string::npos);
  copy.num_heads = 1;
  copy.to.head_dim = 72;
  EXPECT_NE(CopyKv(launcher, nullptr, copy).message().find("head_dim"), std::string::npos);
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::cuda
