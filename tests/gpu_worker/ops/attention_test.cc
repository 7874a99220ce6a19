#include "gpu_worker/ops/attention.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "gpu_worker/ops/cuda.h"
#include "tests/gpu_worker/ops/ops_fixture.h"

namespace tandem::gpu_worker::ops {
namespace {

struct Heads {
  int32_t q;
  int32_t kv;
  int32_t dim;
};

enum class Tier { kDevice, kHost };

// A paged pool full of NaN, in the device's memory or in that of the host which it reaches, with
// sequences whose K and V the test remembers.
class Cache {
 public:
  Cache(OpsFixture& fixture, Heads heads, int32_t block_tokens, int32_t num_blocks)
      : Cache(fixture, heads,
              {fixture.context().compute_dtype(), 3, heads.kv, heads.dim, block_tokens}, num_blocks,
              Tier::kDevice) {}
  Cache(OpsFixture& fixture, Heads heads, const kv::PoolGeometry& geometry, int32_t num_blocks,
        Tier tier)
      : heads_(heads), geometry_(geometry) {
    const std::vector<std::byte> fill(geometry_.block_bytes() * static_cast<size_t>(num_blocks),
                                      std::byte{0xff});
    if (tier == Tier::kHost) {
      pinned_ = fixture.device().AllocateHost(fill.size(), "the host's pool").value();
    }
    if (pinned_ != nullptr) {
      std::memcpy(pinned_->data(), fill.data(), fill.size());
    } else {
      pool_.emplace(fixture, fill);
    }
    free_.resize(static_cast<size_t>(num_blocks));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), fixture.random());
  }

  std::vector<int32_t> Take(int64_t tokens) {
    std::vector<int32_t> table;
    for (int64_t at = 0; at < tokens; at += geometry_.block_tokens) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return table;
  }
  PoolLayer Layer(int32_t layer) const {
    return {&geometry_, pinned_ != nullptr ? pinned_->data() : pool_->data(), layer};
  }
  const kv::PoolGeometry& geometry() const { return geometry_; }
  // Of the test's own memory, or of the device's.
  template <typename Values>
  QkvRows Rows(const Values& qkv) const {
    return {qkv.data(), heads_.q, heads_.kv, heads_.dim};
  }
  size_t stride() const { return static_cast<size_t>((heads_.q + 2 * heads_.kv) * heads_.dim); }

 private:
  Heads heads_;
  kv::PoolGeometry geometry_;
  std::unique_ptr<device::Buffer> pinned_;   // either this,
  std::optional<OnDevice<std::byte>> pool_;  // or this
  std::vector<int32_t> free_;
};

// Attention of position `position` of a sequence whose rows of Q, K and V are qkv [tokens, ..].
std::vector<double> Reference(const QkvRows& rows, int64_t position, int32_t head, double scale) {
  const int32_t kv_head = head / (rows.num_q_heads / rows.num_kv_heads);
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t t = 0; t <= position; ++t) {
    double score = 0;
    for (int32_t d = 0; d < rows.head_dim; ++d) {
      score += double{rows.q(position)[head * rows.head_dim + d]} *
               rows.k(t)[kv_head * rows.head_dim + d];
    }
    weights.push_back(score * scale);
    largest = std::max(largest, weights.back());
  }
  double sum = 0;
  for (double& weight : weights) {
    weight = std::exp(weight - largest);
    sum += weight;
  }
  std::vector<double> out(static_cast<size_t>(rows.head_dim), 0.0);
  for (int64_t t = 0; t <= position; ++t) {
    for (int32_t d = 0; d < rows.head_dim; ++d) {
      out[static_cast<size_t>(d)] +=
          weights[static_cast<size_t>(t)] / sum * rows.v(t)[kv_head * rows.head_dim + d];
    }
  }
  return out;
}

class AttentionTest : public OpsTest {
 protected:
  void ExpectRow(const QkvRows& sequence, int64_t position, const float* got, double scale,
                 double more = 0.0) {
    for (int32_t head = 0; head < sequence.num_q_heads; ++head) {
      const std::vector<double> expected = Reference(sequence, position, head, scale);
      for (int32_t d = 0; d < sequence.head_dim; ++d) {
        // Results are averages of V; rounding scores and weights moves them by a part of its size.
        ASSERT_NEAR(got[head * sequence.head_dim + d], expected[static_cast<size_t>(d)],
                    more + (GetParam() == DType::kFloat32 ? 2e-5 : 3e-2))
            << "position " << position << " head " << head << " d " << d;
      }
    }
  }
};

constexpr Heads kHeads[] = {{3, 3, 16}, {6, 2, 64}, {4, 1, 80}, {8, 2, 96}, {14, 2, 48}};

TEST_P(AttentionTest, PrefillInChunksMatchesTheReference) {
  for (const Heads heads : kHeads) {
    for (const int32_t block_tokens : {16, 128}) {
      Cache cache(f(), heads, block_tokens, 64);
      // Two sequences side by side, in chunks that end anywhere.
      const std::vector<int32_t> lengths = {149, 70};
      const double scale = 1.0 / std::sqrt(heads.dim);
      std::vector<std::vector<float>> sequences;
      std::vector<std::vector<int32_t>> tables;
      for (const int32_t length : lengths) {
        sequences.push_back(f().RandomExact(static_cast<size_t>(length) * cache.stride()));
        tables.push_back(cache.Take(length));
      }
      for (int32_t start = 0; start < 149; start += 43) {
        std::vector<RowRun> runs;
        std::vector<float> batch;
        for (size_t s = 0; s < lengths.size(); ++s) {
          const int32_t rows = std::min(43, lengths[s] - start);
          if (rows > 0) {
            const auto row = static_cast<int32_t>(batch.size() / cache.stride());
            runs.push_back({row, rows, start, tables[s]});
            const auto from = sequences[s].begin() + start * static_cast<int64_t>(cache.stride());
            batch.insert(batch.end(), from, from + rows * static_cast<int64_t>(cache.stride()));
          }
        }
        const auto width = static_cast<size_t>(heads.q * heads.dim);
        const OnDevice batch_there(f(), batch);
        const OnDevice<std::byte> out(f(), batch.size() / cache.stride() * width * 4);
        AttentionArgs args{cache.Rows(batch_there), cache.Layer(1), static_cast<float>(scale),
                           out.data()};
        StoreKv(f().context(), args.qkv, runs, args.pool);
        PrefillAttention(f().context(), args, runs);
        const auto got = f().Decode(out.Read());
        for (size_t r = 0; r < runs.size(); ++r) {
          const size_t s = runs[r].block_table.data() == tables[0].data() ? 0 : 1;
          for (int32_t i = 0; i < runs[r].num_rows; i += 3) {
            ExpectRow(cache.Rows(sequences[s]), start + i,
                      got.data() + static_cast<size_t>(runs[r].first_row + i) * width, scale);
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, DecodeOfShortAndLongSequencesMatchesTheReference) {
  for (const Heads heads : kHeads) {
    Cache cache(f(), heads, 32, 200);
    const double scale = 1.0 / std::sqrt(heads.dim);
    const std::vector<int32_t> lengths = {1, 16, 17, 2100, 300};
    std::vector<std::vector<float>> sequences;
    std::vector<std::vector<int32_t>> tables;
    std::vector<float> batch;
    std::vector<RowRun> runs;
    for (const int32_t length : lengths) {
      sequences.push_back(f().RandomExact(static_cast<size_t>(length) * cache.stride()));
      tables.push_back(cache.Take(length));
    }
    for (size_t s = 0; s < lengths.size(); ++s) {
      const std::vector<RowRun> whole = {{0, lengths[s], 0, tables[s]}};
      const OnDevice sequence(f(), sequences[s]);
      StoreKv(f().context(), cache.Rows(sequence), whole, cache.Layer(2));
      f().Sync();
      runs.push_back({static_cast<int32_t>(s), 1, lengths[s] - 1, tables[s]});
      batch.insert(batch.end(), sequences[s].end() - static_cast<int64_t>(cache.stride()),
                   sequences[s].end());
    }
    const auto width = static_cast<size_t>(heads.q * heads.dim);
    const OnDevice batch_there(f(), batch);
    const OnDevice<std::byte> out(f(), lengths.size() * width * 4);
    AttentionArgs args{cache.Rows(batch_there), cache.Layer(2), static_cast<float>(scale),
                       out.data()};
    DecodeAttention(f().context(), args, runs);
    // Alone, a sequence is cut differently.
    const OnDevice<std::byte> alone(f(), lengths.size() * width * 4);
    args.out = alone.data();
    DecodeAttention(f().context(), args, std::span(runs).subspan(1, 1));
    DecodeAttention(f().context(), args, std::span(runs).subspan(3, 1));
    const auto got = f().Decode(out.Read());
    const auto got_alone = f().Decode(alone.Read());
    for (size_t s = 0; s < lengths.size(); ++s) {
      ExpectRow(cache.Rows(sequences[s]), lengths[s] - 1, got.data() + s * width, scale);
    }
    for (const size_t s : {1, 3}) {
      ExpectRow(cache.Rows(sequences[s]), lengths[s] - 1, got_alone.data() + s * width, scale);
    }
  }
}

TEST_P(AttentionTest, CopiesBetweenPoolsKeepTheResult) {
  const struct {
    DType dtype;
    double rounding;  // of averages of V of size 1
  } kinds[] = {{GetParam(), 0.0}, {DType::kInt8, 0.02}, {DType::kFloat8E4M3, 0.08}};
  for (const Heads heads : {Heads{6, 2, 64}, Heads{7, 1, 80}, Heads{2, 2, 256}}) {
    for (const auto& kind : kinds) {
      SCOPED_TRACE(testing::Message() << DTypeName(kind.dtype) << " heads of " << heads.dim);
      Cache device(f(), heads, 16, 40);
      Cache host(f(), heads, {kind.dtype, 3, heads.kv, heads.dim, 128}, 6, Tier::kHost);
      const int32_t length = 300;
      const auto sequence = f().RandomExact(static_cast<size_t>(length) * device.stride());
      const auto device_table = device.Take(length);
      const auto host_table = host.Take(length);
      const auto back_table = device.Take(length);
      const std::vector<RowRun> whole = {{0, length, 0, device_table}};
      const OnDevice sequence_there(f(), sequence);
      StoreKv(f().context(), device.Rows(sequence_there), whole, device.Layer(0));
      CopyKvArgs copy;
      copy.from = device.Layer(0);
      copy.from_table = device_table;
      copy.to = host.Layer(1);
      copy.to_table = host_table;
      copy.count = 251;
      CopyKv(f().context(), f().context().stream(), copy);
      copy.first = 251;
      copy.count = 49;
      CopyKv(f().context(), f().context().stream(), copy);
      CopyKvArgs back{host.Layer(1), host_table, device.Layer(2), back_table, 0, length};
      CopyKv(f().context(), f().context().stream(), back);
      const std::vector<RowRun> last = {{length - 1, 1, length - 1, back_table}};
      const auto width = static_cast<size_t>(heads.q * heads.dim);
      const OnDevice<std::byte> out(f(), static_cast<size_t>(length) * width * 4);
      const auto scale = static_cast<float>(1.0 / std::sqrt(heads.dim));
      AttentionArgs args{device.Rows(sequence_there), device.Layer(2), scale, out.data()};
      DecodeAttention(f().context(), args, last);
      ExpectRow(device.Rows(sequence), length - 1,
                f().Decode(out.Read()).data() + (length - 1) * static_cast<int64_t>(width),
                double{scale}, kind.rounding);
    }
  }
}

// All layers, through a staging area of two of the host's blocks.
TEST_P(AttentionTest, SequencesMoveToTheHostAndBack) {
  for (const Heads heads : {Heads{6, 2, 64}, Heads{4, 1, 80}}) {
    Cache device(f(), heads, 16, 60);
    Cache host(f(), heads, {GetParam(), 3, heads.kv, heads.dim, 128}, 8, Tier::kHost);
    if (TestsCuda()) {
      ASSERT_TRUE(
          f().context().cuda().PrepareSequenceCopies(4 * host.geometry().block_bytes()).ok());
    }
    const int32_t length = 390;
    const auto sequence = f().RandomExact(static_cast<size_t>(length) * device.stride());
    const OnDevice sequence_there(f(), sequence);
    const auto device_table = device.Take(length);
    const auto host_table = host.Take(length);
    const auto back_table = device.Take(length);
    const std::vector<RowRun> whole = {{0, length, 0, device_table}};
    for (int32_t layer = 0; layer < 3; ++layer) {
      StoreKv(f().context(), device.Rows(sequence_there), whole, device.Layer(layer));
    }
    CopyKvArgs out{device.Layer(0), device_table, host.Layer(0), host_table, 0, length};
    out.to_host = true;
    CopySequenceKv(f().context(), f().context().stream(), out);
    CopyKvArgs back{host.Layer(0), host_table, device.Layer(0), back_table, 0, length};
    back.from_host = true;
    CopySequenceKv(f().context(), f().context().stream(), back);
    const std::vector<RowRun> last = {{length - 1, 1, length - 1, back_table}};
    const auto width = static_cast<size_t>(heads.q * heads.dim);
    const auto scale = static_cast<float>(1.0 / std::sqrt(heads.dim));
    const OnDevice<std::byte> rows(f(), static_cast<size_t>(length) * width * 4);
    for (int32_t layer = 0; layer < 3; ++layer) {
      AttentionArgs args{device.Rows(sequence_there), device.Layer(layer), scale, rows.data()};
      DecodeAttention(f().context(), args, last);
      ExpectRow(device.Rows(sequence), length - 1,
                f().Decode(rows.Read()).data() + (length - 1) * static_cast<int64_t>(width),
                double{scale});
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionTest, testing::Values(DType::kFloat32, DType::kBFloat16),
                         DTypeOf);

}  // namespace
}  // namespace tandem::gpu_worker::ops
