#include "cpu_attention_worker/batch/layer_job.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "common/base/bfloat16.h"

namespace tandem::cpu_attention_worker {
namespace {

constexpr int kThreads = 3;

// Values that bfloat16 and half precision hold exactly, so that one reference serves every dtype.
float Coarse(std::mt19937_64& random) {
  return static_cast<float>(static_cast<int>(random() % 33) - 16) / 16.0f;
}

uint16_t ToHalf(float value) {
  for (uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    if (base::HalfToFloat(static_cast<uint16_t>(bits)) == value) {
      return static_cast<uint16_t>(bits);
    }
  }
  return 0;
}

struct Types {
  DType compute;
  DType kv;
};

class LayerJobTest : public testing::TestWithParam<Types> {
 protected:
  LayerJobTest() {
    geometry_ = {};
    geometry_.num_layers = 2;
    geometry_.num_q_heads = 6;
    geometry_.num_kv_heads = 3;
    geometry_.head_dim = 32;
    geometry_.compute_dtype = static_cast<uint32_t>(GetParam().compute);
    geometry_.kv_dtype = static_cast<uint32_t>(GetParam().kv);
    geometry_.block_tokens = 128;
    geometry_.num_blocks = 64;
  }

  void Append(std::vector<std::byte>* bytes, float value) const {
    const size_t at = bytes->size();
    if (GetParam().compute == DType::kFloat32) {
      bytes->resize(at + 4);
      std::memcpy(bytes->data() + at, &value, 4);
      return;
    }
    const uint16_t word =
        GetParam().compute == DType::kBFloat16 ? base::FloatToBFloat16(value) : ToHalf(value);
    bytes->resize(at + 2);
    std::memcpy(bytes->data() + at, &word, 2);
  }

  float Output(size_t index) const {
    const std::byte* at = o_.data() + index * static_cast<size_t>(DTypeBytes(GetParam().compute));
    if (GetParam().compute == DType::kFloat32) {
      float value = 0;
      std::memcpy(&value, at, 4);
      return value;
    }
    uint16_t word = 0;
    std::memcpy(&word, at, 2);
    return GetParam().compute == DType::kBFloat16 ? base::BFloat16ToFloat(word)
                                                  : base::HalfToFloat(word);
  }

  // O of a row against attention in float64; k, v [tokens, 3, 32].
  void CheckRow(size_t row, const float* q, const std::vector<float>& k,
                const std::vector<float>& v) const {
    const double tolerance = GetParam().kv != DType::kFloat32        ? 1.5e-2
                             : GetParam().compute == DType::kFloat32 ? 1e-5
                             : GetParam().compute == DType::kFloat16 ? 1e-3
                                                                     : 5e-3;
    for (size_t head = 0; head < 6; ++head) {
      std::vector<double> want(32, 0.0);
      double total = 0;
      for (size_t at = head / 2 * 32; at < k.size(); at += 96) {
        double score = 0;
        for (size_t d = 0; d < 32; ++d) {
          score += double{q[head * 32 + d]} * double{k[at + d]};
        }
        const double p = std::exp(score * 0.25);
        total += p;
        for (size_t d = 0; d < 32; ++d) want[d] += p * double{v[at + d]};
      }
      for (size_t d = 0; d < 32; ++d) {
        ASSERT_NEAR(Output(row * 192 + head * 32 + d), want[d] / total, tolerance)
            << "row " << row << " head " << head << " dimension " << d;
      }
    }
  }

  // The portable kernel over float32, this CPU's best over the others.
  attention::AttendSegmentFn Kernel() const {
    const attention::Isa isa = GetParam().kv == DType::kFloat32
                                   ? attention::Isa::kScalar
                                   : attention::SupportedIsas().front();
    return attention::GetAttendSegment(isa, exchange::PoolGeometryOf(geometry_)).value();
  }

  exchange::Geometry geometry_;
  std::vector<std::byte> o_;
};

TEST_P(LayerJobTest, StoresAttendsMergesAndConverts) {
  const kv::PoolGeometry pool_geometry = exchange::PoolGeometryOf(geometry_);
  std::vector<std::byte> pool(geometry_.num_blocks * pool_geometry.block_bytes(), std::byte{0xff});
  std::mt19937_64 random(11);
  exchange::StepSlot step;
  step.scale = 0.25f;
  const std::vector<uint32_t> contexts = {1, 128, 129, 3000, 40};
  std::vector<std::vector<float>> history_k(contexts.size()), history_v(contexts.size());
  std::vector<float> q;
  std::vector<std::byte> q_bytes, k_bytes, v_bytes;
  int32_t next_block = 63;
  for (size_t i = 0; i < contexts.size(); ++i) {
    exchange::RowDescriptor row{contexts[i], (contexts[i] + 127) / 128, step.tables.size()};
    for (uint32_t b = 0; b < row.table_count; ++b) step.tables.push_back(next_block--);
    for (uint32_t t = 0; t < contexts[i]; ++t) {
      std::vector<float> k(96), v(96);
      for (size_t d = 0; d < 96; ++d) {
        k[d] = Coarse(random);
        v[d] = Coarse(random);
      }
      history_k[i].insert(history_k[i].end(), k.begin(), k.end());
      history_v[i].insert(history_v[i].end(), v.begin(), v.end());
      if (t + 1 == contexts[i]) {  // the new token: comes in the row
        for (float x : k) Append(&k_bytes, x);
        for (float x : v) Append(&v_bytes, x);
        break;
      }
      const int32_t block = step.tables[row.table_begin + t / 128];
      kv::StoreToken(pool_geometry, pool.data() + pool_geometry.LayerOffset(block, 1),
                     static_cast<int32_t>(t % 128), {k.data(), v.data(), DType::kFloat32});
    }
    for (size_t d = 0; d < 192; ++d) {
      q.push_back(Coarse(random));
      Append(&q_bytes, q.back());
    }
    step.rows.push_back(row);
  }
  o_.resize(q_bytes.size());

  LayerJob job(geometry_, Kernel(), kThreads);
  job.Prepare(step, {q_bytes.data(), k_bytes.data(), v_bytes.data(), o_.data(), pool.data()});
  EXPECT_EQ(job.layer_read_bytes(), (1u + 128 + 129 + 3000 + 40) * pool_geometry.token_bytes());
  for (int repeat = 0; repeat < 2; ++repeat) {  // storing again changes nothing
    job.BeginLayer(1);
    std::vector<std::thread> threads;
    for (int member = 0; member < kThreads; ++member) {
      threads.emplace_back([&job, member] { job.Work(member, [] { return false; }); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  for (size_t i = 0; i < contexts.size(); ++i) {
    CheckRow(i, &q[i * 192], history_k[i], history_v[i]);
  }
}

TEST_P(LayerJobTest, LeavesBetweenTasksWhenToldTo) {
  const kv::PoolGeometry pool_geometry = exchange::PoolGeometryOf(geometry_);
  std::vector<std::byte> pool(geometry_.num_blocks * pool_geometry.block_bytes());
  exchange::StepSlot step;
  step.scale = 1.0f;
  for (uint64_t i = 0; i < 8; ++i) {
    step.rows.push_back({100, 1, i});
    step.tables.push_back(static_cast<int32_t>(i));
  }
  const std::vector<std::byte> rows(8 * 192 * 4);
  o_.assign(8 * 192 * 4, std::byte{0x55});
  LayerJob job(geometry_, Kernel(), 1);
  job.Prepare(step, {rows.data(), rows.data(), rows.data(), o_.data(), pool.data()});
  job.BeginLayer(0);
  int asked = 0;
  job.Work(0, [&asked] { return ++asked > 3; });
  EXPECT_EQ(asked, 4);
  EXPECT_EQ(Output(0), 0.0f);
  EXPECT_EQ(o_.back(), std::byte{0x55});
}

TEST_P(LayerJobTest, AnEmptyBatchIsDoneAtOnce) {
  exchange::StepSlot step;
  LayerJob job(geometry_, Kernel(), 2);
  job.Prepare(step, {});
  EXPECT_EQ(job.layer_read_bytes(), 0u);
  job.BeginLayer(1);
  job.Work(0, [] { return false; });
  job.Work(1, [] { return false; });
}

TEST_P(LayerJobTest, ListsWhatItsMembersWillRead) {
  exchange::StepSlot step;
  step.rows.push_back({2048, 16, 0});
  step.rows.push_back({40, 1, 16});
  for (int32_t block = 0; block < 17; ++block) step.tables.push_back(block);
  LayerJob job(geometry_, Kernel(), kThreads);
  const std::vector<std::byte> memory(1);
  job.Prepare(step, {memory.data(), memory.data(), memory.data(), o_.data(),
                     const_cast<std::byte*>(memory.data())});
  PrefetchList whole(1 << 30);
  job.ListReads(1, 0, kThreads, &whole);
  EXPECT_LE(whole.bytes(), job.layer_read_bytes());
  EXPECT_GT(whole.bytes(), job.layer_read_bytes() * 49 / 50);  // all but the last block's scales
  size_t parts = 0;
  for (int member = 0; member < kThreads; ++member) {
    PrefetchList part(1 << 30);
    job.ListReads(1, member, member + 1, &part);
    EXPECT_GT(part.bytes(), 0u);
    parts += part.bytes();
  }
  EXPECT_EQ(parts, whole.bytes());
  PrefetchList little(1000);
  job.ListReads(1, 0, kThreads, &little);
  EXPECT_EQ(little.bytes(), 1000u);
}

INSTANTIATE_TEST_SUITE_P(DTypes, LayerJobTest,
                         testing::Values(Types{DType::kFloat32, DType::kFloat32},
                                         Types{DType::kBFloat16, DType::kFloat32},
                                         Types{DType::kFloat16, DType::kFloat32},
                                         Types{DType::kBFloat16, DType::kBFloat16},
                                         Types{DType::kFloat16, DType::kBFloat16},
                                         Types{DType::kBFloat16, DType::kInt8},
                                         Types{DType::kFloat16, DType::kInt8},
                                         Types{DType::kFloat16, DType::kFloat8E4M3}),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param.compute)) + "_over_" +
                                  DTypeName(info.param.kv);
                         });

}  // namespace
}  // namespace tandem::cpu_attention_worker
