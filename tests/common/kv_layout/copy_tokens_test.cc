#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tests/common/kv_layout/token_rows.h"

namespace tandem::kv {
namespace {

constexpr int64_t kTokens = 256;

struct TokenRun {
  int64_t first;
  int64_t count;
};

// Raw copy of token `position`, element by element and with its scales.
void CopyRaw(TestPool& from, TestPool& to, const PagedLayer& source, const PagedLayer& target,
             int64_t position) {
  const PoolGeometry& a = from.geometry();
  const PoolGeometry& b = to.geometry();
  const auto bytes = static_cast<size_t>(DTypeBytes(a.dtype));
  const auto s = static_cast<int32_t>(position % a.block_tokens);
  const auto t = static_cast<int32_t>(position % b.block_tokens);
  for (int32_t head = 0; head < a.num_kv_heads; ++head) {
    std::byte* in =
        source.pool + a.HeadOffset(source.table[static_cast<size_t>(position / a.block_tokens)],
                                   source.layer, head);
    std::byte* out =
        target.pool + b.HeadOffset(target.table[static_cast<size_t>(position / b.block_tokens)],
                                   target.layer, head);
    for (const bool v : {false, true}) {
      for (int32_t d = 0; d < a.head_dim; ++d) {
        std::memcpy(out + bytes * (v ? b.VElement(t, d) : b.KElement(t, d)),
                    in + bytes * (v ? a.VElement(s, d) : a.KElement(s, d)), bytes);
      }
      if (a.has_scales()) {
        reinterpret_cast<float*>(out + b.scales_offset())[t] =
            reinterpret_cast<const float*>(in + a.scales_offset())[s];
      }
      in += a.k_tile_bytes();
      out += b.k_tile_bytes();
    }
  }
}

// Copies `run` and compares every byte of the target with a token-by-token reference.
void Check(const PoolGeometry& from, const PoolGeometry& to, TokenRun run,
           std::mt19937_64& random) {
  SCOPED_TRACE(testing::Message() << DTypeName(from.dtype) << " blocks of " << from.block_tokens
                                  << " to " << DTypeName(to.dtype) << " blocks of "
                                  << to.block_tokens << ", " << from.num_kv_heads << " heads of "
                                  << from.head_dim << ", tokens " << run.first << " + "
                                  << run.count);
  TestPool source(from, kTokens, random);
  TestPool target(to, kTokens, random);
  const size_t size = RowSize(from);
  const std::vector<float> values = RandomRow(2 * size + kTokens, random);
  for (int64_t p = 0; p < kTokens; ++p) {  // a row is the one before, moved by an element
    source.Store(
        1, p,
        {&values[static_cast<size_t>(p)], &values[static_cast<size_t>(p) + size], DType::kFloat32});
  }
  TestPool reference = target;
  std::vector<float> k(size), v(size);
  for (int64_t p = run.first; p < run.first + run.count; ++p) {
    if (from.dtype == to.dtype) {
      CopyRaw(source, reference, source.Layer(1), reference.Layer(0), p);
      continue;
    }
    source.Load(1, p, k.data(), v.data());
    reference.Store(0, p, {k.data(), v.data(), DType::kFloat32});
  }
  const std::vector<std::byte> before = source.bytes();
  CopyTokens(source.Layer(1), target.Layer(0), run.first, run.count);
  ASSERT_EQ(source.bytes(), before);
  ASSERT_EQ(target.bytes(), reference.bytes());
}

TEST(CopyTokens, EveryPairOfTypesAtOddOffsets) {
  std::mt19937_64 random(7);
  const TokenRun runs[] = {{0, 256},  {0, 201}, {37, 101}, {5, 3}, {15, 2}, {16, 16},
                           {120, 20}, {127, 1}, {128, 0},  {3, 0}, {7, 9},  {250, 6}};
  for (DType from : kPoolTypes) {
    for (DType to : kPoolTypes) {
      for (const TokenRun& run : runs) {
        Check(Make(from, 80, 16), Make(to, 80, 128), run, random);
        Check(Make(from, 80, 128), Make(to, 80, 32), run, random);
      }
    }
  }
}

TEST(CopyTokens, RandomShapes) {
  const uint64_t seed = 11;
  std::mt19937_64 random(seed);
  const int32_t blocks[] = {16, 32, 64, 128};
  for (int i = 0; i < 150; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " case " << i);
    PoolGeometry from = Make(kPoolTypes[random() % 4],
                             static_cast<int32_t>(16 * (1 + random() % 16)), blocks[random() % 4]);
    from.num_kv_heads = static_cast<int32_t>(1 + random() % 5);
    PoolGeometry to = from;
    to.dtype = kPoolTypes[random() % 4];
    to.block_tokens = blocks[random() % 4];
    const auto first = static_cast<int64_t>(random() % kTokens);
    const auto count = static_cast<int64_t>(random() % static_cast<uint64_t>(kTokens - first + 1));
    Check(from, to, {first, count}, random);
  }
}

PagedLayer Window(TestPool& pool, int32_t first_head) {
  PagedLayer layer = pool.Layer(1);
  layer.first_head = first_head;
  return layer;
}

TEST(CopyTokens, PoolsOfSomeHeadsAreWindowsIntoOneOfAll) {
  std::mt19937_64 random(21);
  for (DType stored : kPoolTypes) {
    const PoolGeometry whole = Make(DType::kFloat32, 80, 16);
    const PoolGeometry kept = Make(stored, 80, 128);
    TestPool source(whole, kTokens, random);
    TestPool direct(kept, kTokens, random);
    TestPool joined(kept, kTokens, random);
    const size_t size = RowSize(whole);
    for (int64_t p = 0; p < kTokens; ++p) {
      const std::vector<float> values = RandomRow(2 * size, random);
      source.Store(1, p, {values.data(), &values[size], DType::kFloat32});
    }
    CopyTokens(source.Layer(1), direct.Layer(1), 3, 200);
    int32_t first = 0;
    for (int32_t heads : {1, 2}) {
      PoolGeometry part = kept;
      part.num_kv_heads = heads;
      TestPool shard(part, kTokens, random);
      CopyTokens(Window(source, first), shard.Layer(1), 3, 200);
      CopyTokens(shard.Layer(1), Window(joined, first), 3, 200);
      first += heads;
    }
    std::vector<float> want_k(size), want_v(size), got_k(size), got_v(size);
    for (int64_t p = 3; p < 203; ++p) {
      direct.Load(1, p, want_k.data(), want_v.data());
      joined.Load(1, p, got_k.data(), got_v.data());
      ASSERT_EQ(got_k, want_k) << DTypeName(stored) << " token " << p;
      ASSERT_EQ(got_v, want_v) << DTypeName(stored) << " token " << p;
    }
  }
}

TEST(CopyTokens, NanAndInfinityCrossAsStated) {
  std::mt19937_64 random(12);
  for (DType narrow : {DType::kInt8, DType::kFloat8E4M3}) {
    TestPool wide(Make(DType::kFloat32, 64, 16), 32, random);
    TestPool pool(Make(narrow, 64, 128), 32, random);
    std::vector<float> row(RowSize(wide.geometry()), 1.0f);
    for (int64_t p = 0; p < 32; ++p) {
      wide.Store(0, p, {row.data(), row.data(), DType::kFloat32});
    }
    row[3] = std::numeric_limits<float>::quiet_NaN();
    row[70] = -std::numeric_limits<float>::infinity();
    wide.Store(0, 17, {row.data(), row.data(), DType::kFloat32});
    CopyTokens(wide.Layer(0), pool.Layer(0), 0, 32);
    std::vector<float> k(row.size()), v(row.size());
    for (int64_t p = 0; p < 32; ++p) {
      pool.Load(0, p, k.data(), v.data());
      EXPECT_EQ(std::isnan(k[3]), p == 17);
      EXPECT_EQ(std::isnan(k[4]), p == 17 && narrow == DType::kInt8);
      EXPECT_TRUE(std::isfinite(k[70]) && std::isfinite(v[70]));
      EXPECT_EQ(k[70] < -400.0f, p == 17);
      EXPECT_FLOAT_EQ(k[150], 1.0f);
    }
  }
}

// Sequences prefilled in pieces: neighbouring runs of one sub-tile from different threads.
TEST(CopyTokens, RunsThatShareNoTokenMayBeCopiedConcurrently) {
  std::mt19937_64 random(13);
  for (DType to : kPoolTypes) {
    TestPool source(Make(DType::kBFloat16, 96, 16), kTokens, random);
    TestPool one(Make(to, 96, 128), kTokens, random);
    const std::vector<float> row = RandomRow(RowSize(source.geometry()), random);
    for (int64_t p = 0; p < kTokens; ++p) {
      source.Store(0, p, {row.data(), row.data(), DType::kFloat32});
    }
    TestPool many = one;
    CopyTokens(source.Layer(0), one.Layer(1), 0, kTokens);
    const int64_t cuts[] = {0, 21, 90, 163, kTokens};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back(
          [&, i] { CopyTokens(source.Layer(0), many.Layer(1), cuts[i], cuts[i + 1] - cuts[i]); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    EXPECT_EQ(one.bytes(), many.bytes()) << DTypeName(to);
  }
}

}  // namespace
}  // namespace tandem::kv
