#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/gpu_worker/ops/cuda/paged_batch.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

struct Heads {
  int32_t q;
  int32_t kv;
  int32_t dim;
  int32_t stride() const { return (q + 2 * kv) * dim; }
};

// Attention of position `position` of a sequence whose rows of Q, K and V are `rows`.
std::vector<double> Reference(const std::vector<float>& rows, Heads heads, int32_t position,
                              int32_t head) {
  const float* q = rows.data() + int64_t{position} * heads.stride() + head * heads.dim;
  const int32_t kv_head = head / (heads.q / heads.kv);
  const auto k = [&](int32_t t) {
    return rows.data() + int64_t{t} * heads.stride() + (heads.q + kv_head) * heads.dim;
  };
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity();
  for (int32_t t = 0; t <= position; ++t) {
    double score = 0;
    for (int32_t d = 0; d < heads.dim; ++d) {
      score += double{q[d]} * k(t)[d];
    }
    weights.push_back(score / std::sqrt(heads.dim));
    largest = std::max(largest, weights.back());
  }
  double sum = 0;
  for (double& weight : weights) {
    weight = std::exp(weight - largest);
    sum += weight;
  }
  std::vector<double> out(static_cast<size_t>(heads.dim), 0.0);
  for (int32_t t = 0; t <= position; ++t) {
    const float* v = k(t) + heads.kv * heads.dim;
    for (int32_t d = 0; d < heads.dim; ++d) {
      out[static_cast<size_t>(d)] += weights[static_cast<size_t>(t)] / sum * v[d];
    }
  }
  return out;
}

// Compute dtype and the architecture whose code runs.
struct Kind {
  ElementType compute;
  int32_t capability;
};

class CudaAttentionTest : public testing::TestWithParam<Kind> {
 protected:
  ElementType pool_type() const {
    return GetParam().compute == ElementType::kFloat32 ? ElementType::kFloat32
                                                       : ElementType::kBFloat16;
  }
  std::vector<float> RandomRows(Heads heads, int32_t tokens) {
    auto rows = RandomFloats(random_, static_cast<size_t>(tokens * heads.stride()));
    for (float& value : rows) {
      value = ComputeType(pool_type()).Rounded(value);
    }
    return rows;
  }
  TestPool Pool(Heads heads, int32_t block_tokens, int32_t num_blocks) {
    return {random_, {HostType(pool_type()), 2, heads.kv, heads.dim, block_tokens}, num_blocks};
  }
  // Rows [start, start + count) of a sequence, to be stored and attended to.
  struct Piece {
    const std::vector<float>* sequence;
    const std::vector<int32_t>* table;
    int32_t start;
    int32_t count;
  };
  enum class Op { kPrefill, kDecode };
  struct How {
    Op op;
    int32_t every = 1;    // which rows are checked
    bool splits = false;  // has scratch memory to split contexts
  };

  void ExpectAttention(Heads heads, TestPool& pool, const std::vector<Piece>& pieces,
                       const How& how) {
    TestRuns runs;
    std::vector<float> batch(static_cast<size_t>(heads.stride()));  // row 0 belongs to no run
    for (const Piece& piece : pieces) {
      runs.Add({static_cast<int32_t>(batch.size()) / heads.stride(), piece.count, piece.start},
               *piece.table);
      const auto from = piece.sequence->begin() + int64_t{piece.start} * heads.stride();
      batch.insert(batch.end(), from, from + int64_t{piece.count} * heads.stride());
    }
    if (how.op == Op::kDecode) {
      runs.AddEmpty(1);
    }
    Guarded qkv(batch);
    const ComputeType compute(GetParam().compute);
    const size_t width = static_cast<size_t>(heads.q * heads.dim);
    Guarded out(batch.size() / static_cast<size_t>(heads.stride()) * width * compute.element());
    AttentionParams params;
    params.qkv = {qkv.as<float>(), heads.q, heads.kv, heads.dim};
    params.runs = runs.Params();
    params.pool = pool.Params(1);
    params.scale = static_cast<float>(1.0 / std::sqrt(heads.dim));
    params.out = out.data();
    params.scratch_floats =
        how.splits ? DecodeScratchFloats(launcher_.traits(), heads.q, heads.dim) : 0;
    Guarded scratch(static_cast<size_t>(params.scratch_floats) * sizeof(float));
    params.scratch = scratch.as<float>();
    ASSERT_TRUE(StoreKv(launcher_, nullptr, {params.qkv, params.runs, params.pool}).ok());
    const absl::Status status =
        how.op == Op::kPrefill ? PrefillAttention(launcher_, nullptr, GetParam().compute, params)
                               : DecodeAttention(launcher_, nullptr, GetParam().compute, params);
    ASSERT_TRUE(status.ok()) << status;
    ExpectMatrixKernel(heads, how.op);
    const auto got = compute.Decode(out);
    int64_t row = 1;
    for (const Piece& piece : pieces) {
      for (int32_t i = 0; i < piece.count; i += how.every) {
        ExpectRow(heads, piece, piece.start + i,
                  got.data() + (row + i) * static_cast<int64_t>(width));
      }
      row += piece.count;
    }
  }
  // Matrix instructions do the work where the device has them and the room.
  void ExpectMatrixKernel(Heads heads, Op op) {
    const bool has_room = op == Op::kDecode || heads.dim <= 128 || GetParam().capability >= 80;
    const bool is_plain = GetParam().compute == ElementType::kFloat32 || !has_room;
    const std::string& kernel = launcher_.launched().back();
    EXPECT_EQ(kernel.find("plain") != std::string::npos, is_plain) << kernel;
    EXPECT_EQ(kernel.find("@sm75") != std::string::npos, GetParam().capability < 80 && !is_plain)
        << kernel;
  }
  void ExpectRow(Heads heads, const Piece& piece, int32_t position, const float* got) {
    for (int32_t head = 0; head < heads.q; ++head) {
      const auto expected = Reference(*piece.sequence, heads, position, head);
      for (int32_t d = 0; d < heads.dim; ++d) {
        // Results are averages of V; rounding scores and weights moves them by a part of its size.
        ASSERT_NEAR(got[head * heads.dim + d], expected[static_cast<size_t>(d)],
                    GetParam().compute == ElementType::kFloat32 ? 2e-5 : 2e-2)
            << heads.q << "/" << heads.kv << " heads of " << heads.dim << ", position " << position
            << " head " << head << " d " << d;
      }
    }
  }
  void StoreWhole(Heads heads, TestPool& pool, const std::vector<float>& sequence,
                  const std::vector<int32_t>& table) {
    Guarded qkv(sequence);
    TestRuns runs;
    runs.Add({0, static_cast<int32_t>(sequence.size()) / heads.stride(), 0}, table);
    ASSERT_TRUE(
        StoreKv(launcher_, nullptr,
                {{qkv.as<float>(), heads.q, heads.kv, heads.dim}, runs.Params(), pool.Params(1)})
            .ok());
  }

  ShimLauncher launcher_{GetParam().capability};
  std::mt19937 random_{17};
};

constexpr Heads kHeads[] = {{3, 3, 16},  {6, 2, 64},  {4, 1, 80},
                            {14, 2, 48}, {3, 1, 128}, {2, 1, 256}};

TEST_P(CudaAttentionTest, PrefillInChunksMatchesTheReference) {
  for (const Heads heads : kHeads) {
    for (const int32_t block_tokens : {16, 128}) {
      TestPool pool = Pool(heads, block_tokens, 24);
      // Two sequences side by side, in chunks that end anywhere.
      const std::vector<int32_t> lengths = {109, 50};
      std::vector<std::vector<float>> sequences;
      std::vector<std::vector<int32_t>> tables;
      for (const int32_t length : lengths) {
        sequences.push_back(RandomRows(heads, length));
        tables.push_back(pool.Take(length));
      }
      for (int32_t start = 0; start < 109; start += 43) {
        std::vector<Piece> pieces;
        for (size_t s = 0; s < lengths.size(); ++s) {
          if (lengths[s] > start) {
            pieces.push_back({&sequences[s], &tables[s], start, std::min(43, lengths[s] - start)});
          }
        }
        ExpectAttention(heads, pool, pieces, {Op::kPrefill, 3});
      }
    }
  }
}

TEST_P(CudaAttentionTest, LongPromptsMatchTheReference) {
  const Heads heads{4, 1, 64};
  TestPool pool = Pool(heads, 16, 24);
  const auto sequence = RandomRows(heads, 330);
  const auto table = pool.Take(330);
  ExpectAttention(heads, pool, {{&sequence, &table, 0, 330}}, {Op::kPrefill, 29});
}

TEST_P(CudaAttentionTest, DecodeOfShortAndLongSequencesMatchesTheReference) {
  for (const Heads heads : kHeads) {
    for (const bool splits : {false, true}) {
      TestPool pool = Pool(heads, 32, 40);
      const std::vector<int32_t> lengths = {1, 17, 700, 33};
      std::vector<std::vector<float>> sequences;
      std::vector<std::vector<int32_t>> tables;
      std::vector<Piece> pieces;
      for (const int32_t length : lengths) {
        sequences.push_back(RandomRows(heads, length));
        tables.push_back(pool.Take(length));
      }
      for (size_t s = 0; s < lengths.size(); ++s) {
        StoreWhole(heads, pool, sequences[s], tables[s]);
        pieces.push_back({&sequences[s], &tables[s], lengths[s] - 1, 1});
      }
      ExpectAttention(heads, pool, pieces, {Op::kDecode, 1, splits});
      const bool is_split = launcher_.launched().back().starts_with("decode_attention_merge");
      EXPECT_EQ(is_split, splits && GetParam().compute != ElementType::kFloat32);
    }
  }
}

TEST_P(CudaAttentionTest, GroupsLargerThanATile) {
  const Heads heads{40, 2, 32};
  TestPool pool = Pool(heads, 16, 40);
  const auto sequence = RandomRows(heads, 300);
  const auto table = pool.Take(300);
  StoreWhole(heads, pool, sequence, table);
  ExpectAttention(heads, pool, {{&sequence, &table, 299, 1}}, {Op::kDecode, 1, true});
  ExpectAttention(heads, pool, {{&sequence, &table, 280, 20}}, {Op::kPrefill, 4});
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaAttentionTest,
                         testing::Values(Kind{ElementType::kFloat32, 90},
                                         Kind{ElementType::kBFloat16, 90},
                                         Kind{ElementType::kFloat16, 90},
                                         Kind{ElementType::kFloat16, 75}),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return std::string(TypeName(info.param.compute)) + "_sm" +
                                  std::to_string(info.param.capability);
                         });

}  // namespace
}  // namespace tandem::gpu_worker::ops::cuda
