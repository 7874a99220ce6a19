#include "gpu_worker/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "gpu_worker/device/host/host_device.h"
#include "gtest/gtest.h"
#include "tests/gpu_worker/model/memory_model.h"

namespace tandem::gpu_worker::model {
namespace {

using Vector = std::vector<double>;

Vector Multiply(const std::vector<float>& weights, const Vector& x) {
  Vector out(weights.size() / x.size(), 0.0);
  for (size_t n = 0; n < out.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) {
      out[n] += double{weights[n * x.size() + k]} * x[k];
    }
  }
  return out;
}

Vector Norm(const Vector& x, const std::vector<float>& weight, double eps) {
  double sum = 0;
  for (const double value : x) {
    sum += value * value;
  }
  Vector out;
  for (size_t i = 0; i < x.size(); ++i) {
    out.push_back(x[i] / std::sqrt(sum / static_cast<double>(x.size()) + eps) * weight[i]);
  }
  return out;
}

class DecoderTest : public testing::Test {
 protected:
  void Load(const MemoryModel& model) {
    auto decoder = Decoder::Load(context_.get(), model, {32, 64});
    ASSERT_TRUE(decoder.ok()) << decoder.status();
    decoder_ = *std::move(decoder);
    ASSERT_TRUE(decoder_->PreparePositions(64).ok());
  }
  void Sync() { ASSERT_TRUE(stream_->Synchronize(30'000'000).ok()); }

  std::unique_ptr<device::Device> device_ = device::CreateHostDevice({});
  std::unique_ptr<device::Stream> stream_ = device_->CreateComputeStream();
  std::unique_ptr<ops::OpContext> context_ =
      ops::OpContext::Create(device_.get(), stream_.get(), DType::kFloat32).value();
  std::unique_ptr<Decoder> decoder_;
};

// Q, K and V of layer 1 at position zero, which needs no rotation, for residual `x`.
Vector ReferenceQkv(const MemoryModel& model, const Vector& x) {
  const Vector normed = Norm(x, model.Values(WeightRole::kAttentionNorm, 1), 1e-5);
  Vector qkv;
  for (const auto& [matrix, bias] : {std::pair{WeightRole::kQ, WeightRole::kQBias},
                                     std::pair{WeightRole::kK, WeightRole::kKBias},
                                     std::pair{WeightRole::kV, WeightRole::kVBias}}) {
    const Vector part = Multiply(model.Values(matrix, 1), normed);
    for (size_t n = 0; n < part.size(); ++n) {
      qkv.push_back(part[n] + model.Values(bias, 1)[n]);
    }
  }
  return qkv;
}

// A token that attends to itself alone gets its own V, for each query head.
Vector ReferenceAttention(const ModelShape& shape, const Vector& qkv) {
  Vector attention;
  for (int32_t head = 0; head < shape.num_q_heads; ++head) {
    for (int32_t d = 0; d < shape.head_dim; ++d) {
      attention.push_back(qkv[static_cast<size_t>(shape.q_size() + shape.kv_size() +
                                                  head / shape.group_size() * shape.head_dim + d)]);
    }
  }
  return attention;
}

void Add(const Vector& from, Vector& to) {
  for (size_t i = 0; i < to.size(); ++i) {
    to[i] += from[i];
  }
}

// Residual after layer 1.
Vector ReferencePost(const MemoryModel& model, Vector x, const Vector& attention) {
  Add(Multiply(model.Values(WeightRole::kAttentionOutput, 1), attention), x);
  const Vector mlp_in = Norm(x, model.Values(WeightRole::kMlpNorm, 1), 1e-5);
  const Vector gate = Multiply(model.Values(WeightRole::kGate, 1), mlp_in);
  const Vector up = Multiply(model.Values(WeightRole::kUp, 1), mlp_in);
  Vector activated;
  for (size_t n = 0; n < gate.size(); ++n) {
    activated.push_back(gate[n] / (1 + std::exp(-gate[n])) * up[n]);
  }
  Add(Multiply(model.Values(WeightRole::kDown, 1), activated), x);
  return x;
}

void ExpectNear(const float* got, const Vector& expected, double tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance) << i;
  }
}

TEST_F(DecoderTest, PiecesMatchTheReference) {
  for (const bool tied : {false, true}) {
    const ModelShape shape = SmallShape(tied);
    const MemoryModel model(shape);
    Load(model);
    const std::vector<int32_t> tokens = {7, 99, 0};
    const std::vector<int32_t> positions = {0, 0, 0};
    const RowRange rows{4, 3};
    decoder_->Embed(rows, tokens);
    decoder_->Pre(1, rows, positions);
    Sync();
    std::vector<Vector> expected;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int64_t row = rows.first + static_cast<int64_t>(i);
      const auto& table = model.Values(WeightRole::kTokenEmbedding, 0);
      const auto first = table.begin() + tokens[i] * shape.hidden_size;
      const Vector x(first, first + shape.hidden_size);
      const Vector qkv = ReferenceQkv(model, x);
      ExpectNear(decoder_->qkv().q(row), qkv, 1e-4);
      const Vector attention = ReferenceAttention(shape, qkv);
      float* out = reinterpret_cast<float*>(decoder_->attention_out()) + row * shape.q_size();
      std::copy(attention.begin(), attention.end(), out);
      expected.push_back(ReferencePost(model, x, attention));
    }
    decoder_->Post(1, rows);
    const std::vector<int32_t> last = {6, 4};
    decoder_->Logits(last);
    Sync();
    for (size_t i = 0; i < last.size(); ++i) {
      const Vector& x = expected[static_cast<size_t>(last[i] - rows.first)];
      ExpectNear(decoder_->hidden() + last[i] * shape.hidden_size, x, 1e-4);
      const WeightRole output = tied ? WeightRole::kTokenEmbedding : WeightRole::kOutput;
      const Vector normed = Norm(x, model.Values(WeightRole::kOutputNorm, 0), 1e-5);
      ExpectNear(decoder_->logits() + i * static_cast<size_t>(shape.vocab_size),
                 Multiply(model.Values(output, 0), normed), 2e-4);
    }
  }
}

TEST_F(DecoderTest, MissingAndMisshapenWeightsAreNamed) {
  MemoryModel missing(SmallShape(true));
  missing.Drop(WeightRole::kUp, 1);
  const auto no_up = Decoder::Load(context_.get(), missing, {32, 64});
  ASSERT_FALSE(no_up.ok());
  EXPECT_EQ(no_up.status().message(), "memory: layer 1 has no up");
  MemoryModel misshapen(SmallShape(true));
  misshapen.Reshape(WeightRole::kDown, 0, 47);
  const auto bad_down = Decoder::Load(context_.get(), misshapen, {32, 64});
  ASSERT_FALSE(bad_down.ok());
  EXPECT_EQ(bad_down.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(bad_down.status().message().find("down"), std::string::npos);
}

}  // namespace
}  // namespace tandem::gpu_worker::model
