#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/model_files/model_files.h"

namespace tandem::gpu_worker::model {

using model_files::TensorType;
using model_files::WeightRole;
using model_files::WeightView;

// A model of random weights in memory.
class MemoryModel : public model_files::ModelFiles {
 public:
  explicit MemoryModel(const ModelShape& shape) : shape_(shape) {
    const int64_t hidden = shape.hidden_size;
    Put(WeightRole::kTokenEmbedding, 0, shape.vocab_size, hidden);
    Put(WeightRole::kOutputNorm, 0, 1, hidden);
    if (!shape.tied_embeddings) {
      Put(WeightRole::kOutput, 0, shape.vocab_size, hidden);
    }
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      Put(WeightRole::kAttentionNorm, layer, 1, hidden);
      Put(WeightRole::kQ, layer, shape.q_size(), hidden);
      Put(WeightRole::kK, layer, shape.kv_size(), hidden);
      Put(WeightRole::kV, layer, shape.kv_size(), hidden);
      Put(WeightRole::kQBias, layer, 1, shape.q_size());
      Put(WeightRole::kKBias, layer, 1, shape.kv_size());
      Put(WeightRole::kVBias, layer, 1, shape.kv_size());
      Put(WeightRole::kAttentionOutput, layer, hidden, shape.q_size());
      Put(WeightRole::kMlpNorm, layer, 1, hidden);
      Put(WeightRole::kGate, layer, shape.intermediate_size, hidden);
      Put(WeightRole::kUp, layer, shape.intermediate_size, hidden);
      Put(WeightRole::kDown, layer, hidden, shape.intermediate_size);
    }
  }

  const ModelShape& shape() const override { return shape_; }
  const tokenizer::TokenizerSpec& tokenizer() const override { return tokenizer_; }
  const GenerationDefaults& generation_defaults() const override { return defaults_; }
  const std::string& name() const override { return name_; }
  std::optional<WeightView> Find(WeightRole role, int32_t layer) const override {
    const bool once = role == WeightRole::kTokenEmbedding || role == WeightRole::kOutputNorm ||
                      role == WeightRole::kOutput;
    if (role == WeightRole::kOutput && shape_.tied_embeddings) {
      role = WeightRole::kTokenEmbedding;
    }
    const auto found = matrices_.find({role, once ? 0 : layer});
    if (found == matrices_.end()) {
      return std::nullopt;
    }
    return found->second.view;
  }
  uint64_t weight_bytes() const override { return 0; }

  const std::vector<float>& Values(WeightRole role, int32_t layer) const {
    return matrices_.at({role, layer}).values;
  }
  void Drop(WeightRole role, int32_t layer) { matrices_.erase({role, layer}); }
  void Reshape(WeightRole role, int32_t layer, int64_t rows) {
    matrices_.at({role, layer}).view.rows = rows;
  }

 private:
  struct Matrix {
    std::vector<float> values;
    WeightView view;
  };
  void Put(WeightRole role, int32_t layer, int64_t rows, int64_t cols) {
    Matrix& matrix = matrices_[{role, layer}];
    std::normal_distribution<float> normal(0.0f, rows == 1 ? 1.0f : 0.2f);
    matrix.values.resize(static_cast<size_t>(rows * cols));
    for (float& value : matrix.values) {
      value = normal(random_);
    }
    matrix.view = {TensorType::kF32,
                   rows,
                   cols,
                   cols * 4,
                   reinterpret_cast<const std::byte*>(matrix.values.data()),
                   0};
  }

  ModelShape shape_;
  std::mt19937 random_{11};
  std::map<std::pair<WeightRole, int32_t>, Matrix> matrices_;
  tokenizer::TokenizerSpec tokenizer_;
  GenerationDefaults defaults_;
  std::string name_ = "memory";
};

inline ModelShape SmallShape(bool tied) {
  ModelShape shape;
  shape.num_layers = 2;
  shape.hidden_size = 48;
  shape.intermediate_size = 80;
  shape.num_q_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 16;
  shape.vocab_size = 100;
  shape.max_position = 64;
  shape.qkv_bias = true;
  shape.tied_embeddings = tied;
  return shape;
}

}  // namespace tandem::gpu_worker::model
