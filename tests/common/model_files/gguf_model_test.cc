#include "common/model_files/gguf_model.h"

#include <limits>
#include <map>
#include <string>

#include "common/model_files/rope_factors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/model_writer.h"

namespace tandem::model_files {
namespace {

using fakes::GgufWriter;
using fakes::NamedTensor;
using fakes::TinyShape;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<ModelParts> Read(const std::string& bytes, const OpenOptions& options = {}) {
  return ReadGgufModel({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, "m.gguf",
                       options);
}

std::vector<float> Values(const ModelParts& parts, WeightRole role, int32_t layer) {
  const auto view = parts.weights.Find(role, layer);
  if (!view) {
    return {};
  }
  std::vector<float> values(static_cast<size_t>(view->rows * view->cols));
  ReadRows(*view, 0, view->rows, values.data());
  return values;
}

std::map<std::string, std::vector<float>> ByName(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, std::vector<float>> values;
  for (const NamedTensor& tensor : tensors) {
    values[tensor.name] = tensor.values;
  }
  return values;
}

void PermuteQk(const ModelShape& shape, std::vector<NamedTensor>* tensors) {
  for (NamedTensor& tensor : *tensors) {
    if (tensor.name.find("attn_q.") != std::string::npos) {
      fakes::PermuteHeads(&tensor, shape.num_q_heads);
    } else if (tensor.name.find("attn_k.") != std::string::npos) {
      fakes::PermuteHeads(&tensor, shape.num_kv_heads);
    }
  }
}

void ExpectRefused(const GgufWriter& writer, const std::string& message) {
  const auto parts = Read(writer.Finish());
  ASSERT_FALSE(parts.ok()) << message;
  EXPECT_THAT(std::string(parts.status().message()), HasSubstr(message));
  EXPECT_THAT(std::string(parts.status().message()), HasSubstr("m.gguf"));
}

GgufWriter Llama(const ModelShape& shape) {
  GgufWriter writer;
  writer.Model(shape, "llama").Tensors(fakes::ModelTensors(shape, fakes::FileNaming::kGguf, 1));
  return writer;
}

TEST(GgufModelTest, ReadsLlamaAndPutsItsRowsRight) {
  for (const bool bias : {false, true}) {
    ModelShape shape = TinyShape(ModelFamily::kLlama);
    shape.qkv_bias = bias;
    const auto logical = fakes::ModelTensors(shape, fakes::FileNaming::kGguf, 1);
    auto stored = logical;
    PermuteQk(shape, &stored);
    const std::string bytes = GgufWriter().Model(shape, "llama").Tensors(stored).Finish();
    const auto parts = Read(bytes);
    ASSERT_TRUE(parts.ok()) << parts.status();
    auto values = ByName(logical);
    EXPECT_EQ(Values(*parts, WeightRole::kQ, 1), values["blk.1.attn_q.weight"]);
    EXPECT_EQ(Values(*parts, WeightRole::kK, 0), values["blk.0.attn_k.weight"]);
    EXPECT_EQ(Values(*parts, WeightRole::kV, 0), values["blk.0.attn_v.weight"]);
    EXPECT_EQ(Values(*parts, WeightRole::kQBias, 1), values["blk.1.attn_q.bias"]);
    EXPECT_EQ(Values(*parts, WeightRole::kKBias, 1), values["blk.1.attn_k.bias"]);
    EXPECT_EQ(Values(*parts, WeightRole::kDown, 1), values["blk.1.ffn_down.weight"]);
    EXPECT_EQ(Values(*parts, WeightRole::kOutput, 0), values["output.weight"]);
    EXPECT_EQ(Values(*parts, WeightRole::kOutputNorm, 0), values["output_norm.weight"]);
    EXPECT_FALSE(parts->weights.Find(WeightRole::kQ, 2).has_value());
    EXPECT_FALSE(parts->weights.Find(WeightRole::kQNorm, 0).has_value());
  }
}

TEST(GgufModelTest, ReadsShapeAndTokenizer) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  const auto parts = Read(Llama(shape).Finish());
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->shape.num_layers, 2);
  EXPECT_EQ(parts->shape.head_dim, 16);
  EXPECT_EQ(parts->shape.num_kv_heads, 2);
  EXPECT_EQ(parts->shape.vocab_size, 48);
  EXPECT_EQ(parts->shape.max_position, 512);
  EXPECT_FALSE(parts->shape.tied_embeddings);
  const auto& spec = parts->tokenizer;
  EXPECT_EQ(spec.kind, tokenizer::TokenizerSpec::Kind::kGgufBpe);
  EXPECT_EQ(spec.gguf_tokens.size(), 48u);
  EXPECT_EQ(spec.gguf_types.size(), 48u);
  EXPECT_THAT(spec.gguf_merges, ElementsAre("t o", "to k"));
  EXPECT_EQ(spec.gguf_pre, "smollm");
  EXPECT_EQ(spec.bos_id, 1);
  EXPECT_EQ(spec.eos_id, 2);
  EXPECT_EQ(spec.chat_template, "{{ messages }}");
  EXPECT_THAT(parts->defaults.eos_token_ids, ElementsAre(2));
}

TEST(GgufModelTest, OtherArchitecturesAreNotPermuted) {
  for (const auto& [family, name] :
       {std::pair{ModelFamily::kQwen2, "qwen2"}, std::pair{ModelFamily::kQwen3, "qwen3"}}) {
    const ModelShape shape = TinyShape(family);
    const auto tensors = fakes::ModelTensors(shape, fakes::FileNaming::kGguf, 2);
    const std::string bytes = GgufWriter().Model(shape, name).Tensors(tensors).Finish();
    const auto parts = Read(bytes);
    ASSERT_TRUE(parts.ok()) << parts.status();
    auto values = ByName(tensors);
    EXPECT_EQ(Values(*parts, WeightRole::kQ, 1), values["blk.1.attn_q.weight"]);
    EXPECT_EQ(Values(*parts, WeightRole::kQBias, 1), values["blk.1.attn_q.bias"]);
    EXPECT_EQ(Values(*parts, WeightRole::kKNorm, 1), values["blk.1.attn_k_norm.weight"]);
    EXPECT_EQ(parts->shape.qkv_bias, family == ModelFamily::kQwen2);
    EXPECT_EQ(parts->shape.qk_norm, family == ModelFamily::kQwen3);
    EXPECT_EQ(parts->shape.tied_embeddings, family == ModelFamily::kQwen2);
    const char* output = parts->shape.tied_embeddings ? "token_embd.weight" : "output.weight";
    EXPECT_EQ(Values(*parts, WeightRole::kOutput, 0), values[output]);
  }
}

TEST(GgufModelTest, CutsFusedTensorsOfPhi3) {
  const ModelShape shape = TinyShape(ModelFamily::kPhi3);
  const auto tensors = fakes::ModelTensors(shape, fakes::FileNaming::kGguf, 3);
  const std::string bytes = GgufWriter().Model(shape, "phi3").Tensors(tensors).Finish();
  const auto parts = Read(bytes);
  ASSERT_TRUE(parts.ok()) << parts.status();
  std::vector<float> qkv = Values(*parts, WeightRole::kQ, 1);
  for (const WeightRole role : {WeightRole::kK, WeightRole::kV}) {
    const std::vector<float> rows = Values(*parts, role, 1);
    qkv.insert(qkv.end(), rows.begin(), rows.end());
  }
  auto values = ByName(tensors);
  EXPECT_EQ(qkv, values["blk.1.attn_qkv.weight"]);
  std::vector<float> gate_up = Values(*parts, WeightRole::kGate, 0);
  const std::vector<float> up = Values(*parts, WeightRole::kUp, 0);
  gate_up.insert(gate_up.end(), up.begin(), up.end());
  EXPECT_EQ(gate_up, values["blk.0.ffn_up.weight"]);
}

TEST(GgufModelTest, ReadsRopeScaling) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  GgufWriter linear = Llama(shape);
  linear.String("llama.rope.scaling.type", "linear").Float32("llama.rope.scaling.factor", 4.0f);
  auto parts = Read(linear.Finish());
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->shape.rope.scaling, RopeShape::Scaling::kLinear);
  EXPECT_EQ(parts->shape.rope.factor, 4.0);
  EXPECT_EQ(parts->shape.max_position, 2048);

  ModelShape llama3 = shape;
  llama3.head_dim = 128;
  RopeShape& rope = llama3.rope;
  rope.theta = 500000.0;
  rope.scaling = RopeShape::Scaling::kLlama3;
  rope.factor = 8.0;
  const std::vector<double> factors = RopeFactors(rope, 128);
  GgufWriter writer = Llama(llama3);
  writer.Tensor("rope_freqs.weight", {64}, 0, fakes::EncodeF32({factors.begin(), factors.end()}));
  const std::string bytes = writer.Finish();
  parts = Read(bytes);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->shape.rope.scaling, RopeShape::Scaling::kLlama3);
  EXPECT_NEAR(parts->shape.rope.factor, 8.0, 1e-4);
  EXPECT_EQ(parts->shape.rope.original_max_position, 8192);
}

TEST(GgufModelTest, RefusesVariantsItCannotRun) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  ExpectRefused(GgufWriter().Model(shape, "gemma2"), "general.architecture is gemma2");
  ExpectRefused(GgufWriter().UInt32("x", 1), "general.architecture is missing");
  GgufWriter writer = Llama(shape);
  ExpectRefused(writer.UInt32("llama.expert_count", 8), "llama.expert_count");
  writer = Llama(shape);
  ExpectRefused(writer.UInt32("split.count", 2), "split.count");
  writer = Llama(shape);
  ExpectRefused(writer.String("llama.rope.scaling.type", "yarn"),
                "llama.rope.scaling.type is yarn");
  writer = Llama(shape);
  ExpectRefused(writer.UInt32("llama.rope.dimension_count", 8), "llama.rope.dimension_count is 8");
  writer = Llama(shape);
  ExpectRefused(writer.UInt32("llama.attention.sliding_window", 256),
                "llama.attention.sliding_window is 256");
  writer = Llama(shape);
  ExpectRefused(writer.Tensor("blk.0.attn_output.bias", {64}, 0, std::string(256, '\0')),
                "tensor blk.0.attn_output.bias is none that this model type has");
  writer = Llama(shape);
  ExpectRefused(
      writer.Tensor("rope_freqs.weight", {8}, 0, fakes::EncodeF32({1, 3, 1, 2, 5, 1, 2, 9})),
      "rope_freqs.weight");
  writer = GgufWriter();
  writer.Model(shape, "llama")
      .String("tokenizer.ggml.modelx", "")
      .Float32("llama.final_logit_softcapping", 30.0f);
  ExpectRefused(writer, "final_logit_softcapping");
}

TEST(GgufModelTest, AWindowThatCannotBiteIsNoReasonToRefuse) {
  GgufWriter writer = Llama(TinyShape(ModelFamily::kLlama));
  writer.UInt32("llama.attention.sliding_window", 256);
  OpenOptions options;
  options.max_model_len = 256;
  const std::string bytes = writer.Finish();
  EXPECT_TRUE(Read(bytes, options).ok());
  options.max_model_len = 257;
  EXPECT_FALSE(Read(bytes, options).ok());
}

TEST(GgufModelTest, RefusesMissingAndMisshapenTensors) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  const auto tensors = fakes::ModelTensors(shape, fakes::FileNaming::kGguf, 1);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == "output.weight") {
      continue;  // without it the embeddings are tied
    }
    auto fewer = tensors;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i));
    ExpectRefused(GgufWriter().Model(shape, "llama").Tensors(fewer), tensors[i].name);
    auto wrong = tensors;
    wrong[i].dims.front() /= 2;
    wrong[i].values.resize(wrong[i].values.size() / 2);
    const auto parts = Read(GgufWriter().Model(shape, "llama").Tensors(wrong).Finish());
    EXPECT_FALSE(parts.ok()) << tensors[i].name;
  }
}

TEST(GgufModelTest, RefusesHostileMetadata) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  const struct {
    const char* key;
    uint32_t value;
  } cases[] = {{"llama.block_count", 0},
               {"llama.block_count", 100000},
               {"llama.attention.head_count", 0},
               {"llama.attention.head_count", 0xffffffffu},
               {"llama.attention.head_count_kv", 3},
               {"llama.attention.key_length", 24},
               {"llama.embedding_length", 0x7fffffff},
               {"llama.context_length", 0},
               {"tokenizer.ggml.eos_token_id", 48}};
  for (const auto& test : cases) {
    GgufWriter writer;
    writer.Model(shape, "llama").Tensors(fakes::ModelTensors(shape, fakes::FileNaming::kGguf, 1));
    std::string bytes = writer.Finish();
    const std::string key = test.key;
    const size_t at = bytes.find(key + std::string("\4\0\0\0", 4));
    ASSERT_NE(at, std::string::npos) << key;
    bytes.replace(at + key.size() + 4, 4,
                  std::string(reinterpret_cast<const char*>(&test.value), 4));
    const auto parts = Read(bytes);
    EXPECT_FALSE(parts.ok()) << key << " " << test.value;
    // Messages speak the file's language: its key, or that of one beside it (value_length).
    const std::string named =
        key == "llama.attention.key_length" ? "attention." : key.substr(key.find('.') + 1);
    EXPECT_THAT(std::string(parts.status().message()), HasSubstr(named));
  }
  for (const float theta : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    ModelShape bad = shape;
    bad.rope.theta = theta;
    ExpectRefused(Llama(bad), "rope.freq_base is");
  }
}

TEST(GgufModelTest, RefusesVocabulariesThatDoNotFit) {
  ModelShape shape = TinyShape(ModelFamily::kLlama);
  const auto tensors = fakes::ModelTensors(shape, fakes::FileNaming::kGguf, 1);
  GgufWriter writer;
  shape.vocab_size = 49;
  ExpectRefused(writer.Model(shape, "llama").Tensors(tensors), "tokenizer.ggml.tokens has 49");
  writer = Llama(TinyShape(ModelFamily::kLlama));
  ExpectRefused(writer.Floats("tokenizer.ggml.scores", {1, 2}), "scores has another length");
}

TEST(GgufModelTest, RefusesTextThatIsNoUtf8) {
  GgufWriter writer = Llama(TinyShape(ModelFamily::kLlama));
  std::string bytes = writer.Finish();
  const size_t at = bytes.find("{{ messages }}");
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(0xff);
  const auto parts = Read(bytes);
  ASSERT_FALSE(parts.ok());
  EXPECT_THAT(std::string(parts.status().message()),
              HasSubstr("tokenizer.chat_template is not valid UTF-8"));
}

TEST(GgufModelTest, DummyWeightsNeedNoTensors) {
  ModelShape shape = TinyShape(ModelFamily::kQwen3);
  GgufWriter writer;
  writer.Model(shape, "qwen3").UInt32("qwen3.vocab_size", 48);
  OpenOptions options;
  options.dummy_weights = true;
  const auto parts = Read(writer.Finish(), options);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(Values(*parts, WeightRole::kQNorm, 1), std::vector<float>(16, 1.0f));
  const std::vector<float> q = Values(*parts, WeightRole::kQ, 0);
  ASSERT_EQ(q.size(), 64u * 64u);
  EXPECT_EQ(q, Values(*Read(writer.Finish(), options), WeightRole::kQ, 0));
  EXPECT_NE(q, Values(*parts, WeightRole::kQ, 1));
  double square = 0;
  for (const float value : q) {
    square += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(std::sqrt(square / static_cast<double>(q.size())), 0.02, 0.002);
}

}  // namespace
}  // namespace tandem::model_files
