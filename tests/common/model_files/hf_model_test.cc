// Hugging Face folders, and OpenModel over both kinds of model.
#include <cmath>
#include <map>
#include <string>

#include "common/model_files/model_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/fakes/model_writer.h"

namespace tandem::model_files {
namespace {

using fakes::ConfigJson;
using fakes::NamedTensor;
using fakes::TemporaryFolder;
using fakes::TinyShape;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> Values(const ModelFiles& model, WeightRole role, int32_t layer) {
  const auto view = model.Find(role, layer);
  if (!view) {
    return {};
  }
  std::vector<float> values(static_cast<size_t>(view->rows * view->cols));
  ReadRows(*view, 0, view->rows, values.data());
  return values;
}

std::vector<NamedTensor> Tensors(const ModelShape& shape) {
  return fakes::ModelTensors(shape, fakes::FileNaming::kHuggingFace, 5);
}

const NamedTensor& Named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) {
      return tensor;
    }
  }
  ADD_FAILURE() << name;
  return tensors.front();
}

// Opens a folder with this config.json and random weights for `shape`.
absl::StatusOr<std::unique_ptr<ModelFiles>> OpenWith(const ModelShape& shape,
                                                     const std::string& config,
                                                     const OpenOptions& options = {}) {
  TemporaryFolder folder;
  folder.Write("config.json", config);
  folder.Write("model.safetensors", fakes::SafetensorsBytes(Tensors(shape), "BF16"));
  return OpenModel(folder.path(), options);
}

void ExpectRefused(ModelFamily family, const std::string& extra, const std::string& message) {
  const ModelShape shape = TinyShape(family);
  const auto model = OpenWith(shape, ConfigJson(shape, extra));
  ASSERT_FALSE(model.ok()) << extra;
  EXPECT_THAT(std::string(model.status().message()), HasSubstr(message)) << extra;
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("config.json"));
}

TEST(HfModelTest, ReadsEveryFamilyInEveryType) {
  for (const ModelFamily family : {ModelFamily::kLlama, ModelFamily::kMistral, ModelFamily::kQwen2,
                                   ModelFamily::kQwen3, ModelFamily::kPhi3}) {
    for (const std::string type : {"F32", "F16", "BF16"}) {
      const ModelShape shape = TinyShape(family);
      const auto tensors = Tensors(shape);
      TemporaryFolder folder;
      folder.Write("config.json", ConfigJson(shape));
      folder.Write("model.safetensors", fakes::SafetensorsBytes(tensors, type, 1));
      const auto model = OpenModel(folder.path());
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_EQ((*model)->shape().family, family);
      EXPECT_EQ((*model)->shape().qkv_bias, shape.qkv_bias);
      EXPECT_EQ((*model)->shape().qk_norm, shape.qk_norm);
      EXPECT_EQ(Values(**model, WeightRole::kAttentionOutput, 1),
                Named(tensors, "model.layers.1.self_attn.o_proj.weight").values);
      if (family == ModelFamily::kPhi3) {
        const auto& fused = Named(tensors, "model.layers.0.mlp.gate_up_proj.weight").values;
        const auto up = Values(**model, WeightRole::kUp, 0);
        EXPECT_EQ(
            up, std::vector<float>(fused.begin() + static_cast<ptrdiff_t>(up.size()), fused.end()));
      } else {
        EXPECT_EQ(Values(**model, WeightRole::kQ, 1),
                  Named(tensors, "model.layers.1.self_attn.q_proj.weight").values);
      }
      const char* output = shape.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
      EXPECT_EQ(Values(**model, WeightRole::kOutput, 0), Named(tensors, output).values);
    }
  }
}

TEST(HfModelTest, ReadsShardsByTheIndexAndWithoutOne) {
  const ModelShape shape = TinyShape(ModelFamily::kMistral);
  const auto tensors = Tensors(shape);
  const std::vector<NamedTensor> first(tensors.begin(), tensors.begin() + 9);
  const std::vector<NamedTensor> second(tensors.begin() + 9, tensors.end());
  TemporaryFolder folder;
  folder.Write("config.json", ConfigJson(shape));
  folder.Write("model-00001-of-00002.safetensors", fakes::SafetensorsBytes(first, "F16"));
  folder.Write("model-00002-of-00002.safetensors", fakes::SafetensorsBytes(second, "F16"));
  const auto without = OpenModel(folder.path());
  ASSERT_TRUE(without.ok()) << without.status();

  const auto index = [&](const std::string& second_file, const std::string& more) {
    std::string map;
    for (size_t i = 0; i < tensors.size(); ++i) {
      map += (i == 0 ? "\"" : ", \"") + tensors[i].name + "\": \"" +
             (i < 9 ? "model-00001-of-00002.safetensors" : second_file) + "\"";
    }
    folder.Write("model.safetensors.index.json", "{\"weight_map\": {" + map + more + "}}");
    return OpenModel(folder.path());
  };
  const auto with = index("model-00002-of-00002.safetensors", "");
  ASSERT_TRUE(with.ok()) << with.status();
  EXPECT_EQ(Values(**with, WeightRole::kDown, 1),
            Named(tensors, "model.layers.1.mlp.down_proj.weight").values);

  EXPECT_THAT(std::string(index("model-00003.safetensors", "").status().message()),
              HasSubstr("model-00003.safetensors"));
  EXPECT_THAT(std::string(index("../model.safetensors", "").status().message()),
              HasSubstr("weight_map"));
  EXPECT_THAT(std::string(index("model-00002-of-00002.safetensors",
                                ", \"extra\": \"model-00001-of-00002.safetensors\"")
                              .status()
                              .message()),
              HasSubstr("tensor extra is missing"));
  folder.Write("model.safetensors.index.json", "{\"weight_map\": []}");
  EXPECT_FALSE(OpenModel(folder.path()).ok());
}

TEST(HfModelTest, ATensorInTwoFilesIsRefused) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  TemporaryFolder folder;
  folder.Write("config.json", ConfigJson(shape));
  folder.Write("a.safetensors", fakes::SafetensorsBytes(Tensors(shape), "F16"));
  folder.Write("b.safetensors", fakes::SafetensorsBytes(Tensors(shape), "F16"));
  EXPECT_THAT(std::string(OpenModel(folder.path()).status().message()),
              HasSubstr("is in another file too"));
}

TEST(HfModelTest, ReadsRopeInBothForms) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  const auto rope = [&](const std::string& extra) {
    const auto model = OpenWith(shape, ConfigJson(shape, extra));
    EXPECT_TRUE(model.ok()) << extra << model.status();
    return model.ok() ? (*model)->shape() : ModelShape{};
  };
  EXPECT_EQ(rope("").rope.theta, 10000.0);
  EXPECT_EQ(rope(", \"rope_theta\": 500000.0, \"rope_scaling\": null").rope.theta, 500000.0);
  EXPECT_EQ(
      rope(", \"rope_parameters\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}").rope.theta,
      1e6);
  const std::string llama3 =
      "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
      "\"original_max_position_embeddings\": 64, \"rope_type\": \"llama3\"";
  for (const std::string& extra :
       {", \"rope_theta\": 5e5, \"rope_scaling\": {" + llama3 + "}",
        ", \"rope_parameters\": {\"rope_theta\": 5e5, " + llama3 + "}"}) {
    const RopeShape got = rope(extra).rope;
    EXPECT_EQ(got.theta, 5e5);
    EXPECT_EQ(got.scaling, RopeShape::Scaling::kLlama3);
    EXPECT_EQ(got.factor, 8.0);
    EXPECT_EQ(got.original_max_position, 64);
  }
  const ModelShape linear = rope(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}");
  EXPECT_EQ(linear.rope.scaling, RopeShape::Scaling::kLinear);
  EXPECT_EQ(linear.max_position, 1024);
}

TEST(HfModelTest, RefusesWhatItCannotRun) {
  const ModelFamily llama = ModelFamily::kLlama;
  ExpectRefused(llama, ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}",
                "rope_scaling.rope_type is yarn");
  ExpectRefused(llama, ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 4}",
                "rope_scaling.low_freq_factor");
  ExpectRefused(llama, ", \"rope_scaling\": {\"type\": \"linear\"}", "rope_scaling.factor");
  ExpectRefused(llama, ", \"rope_scaling\": {\"factor\": 2}", "rope_scaling.rope_type");
  ExpectRefused(llama, ", \"rope_scaling\": 3", "rope_scaling is not an object");
  ExpectRefused(llama, ", \"rope_theta\": \"big\"", "rope_theta is not a number");
  ExpectRefused(llama, ", \"rope_theta\": 1e300", "rope_theta / rope.freq_base is 1e+300");
  ExpectRefused(llama, ", \"attention_bias\": true", "attention_bias");
  ExpectRefused(llama, ", \"mlp_bias\": true", "mlp_bias");
  ExpectRefused(llama, ", \"hidden_act\": \"gelu\"", "hidden_act is gelu");
  ExpectRefused(llama, ", \"quantization_config\": {}", "quantization_config");
  ExpectRefused(llama, ", \"architectures\": [\"LlamaForSequenceClassification\"]",
                "architectures");
  ExpectRefused(llama, ", \"head_dim\": 16", "occurs twice");
  ExpectRefused(llama, ", \"eos_token_id\": 48", "eos_token_id holds 48");
  ExpectRefused(llama, ", \"eos_token_id\": \"x\"", "eos_token_id");
  ExpectRefused(ModelFamily::kPhi3, ", \"partial_rotary_factor\": 0.75", "partial_rotary_factor");
  ExpectRefused(ModelFamily::kPhi3,
                ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1]}", "longrope");
}

TEST(HfModelTest, AWindowIsRefusedOnlyWhereItBites) {
  const auto opens = [](ModelFamily family, const std::string& extra, int max_model_len = 0) {
    const ModelShape shape = TinyShape(family);
    OpenOptions options;
    options.max_model_len = max_model_len;
    return OpenWith(shape, ConfigJson(shape, extra), options).ok();
  };
  const std::string window = ", \"sliding_window\": 256";
  EXPECT_FALSE(opens(ModelFamily::kMistral, window));
  EXPECT_TRUE(opens(ModelFamily::kMistral, window, 256));
  EXPECT_TRUE(opens(ModelFamily::kMistral, ", \"sliding_window\": 512"));
  EXPECT_TRUE(opens(ModelFamily::kMistral, ", \"sliding_window\": null"));
  EXPECT_FALSE(opens(ModelFamily::kPhi3, window));
  EXPECT_TRUE(opens(ModelFamily::kQwen2, window));
  EXPECT_TRUE(opens(ModelFamily::kQwen2, window + ", \"use_sliding_window\": false"));
  EXPECT_FALSE(opens(ModelFamily::kQwen2,
                     window + ", \"use_sliding_window\": true, \"max_window_layers\": 1"));
  EXPECT_TRUE(opens(ModelFamily::kQwen2,
                    window + ", \"use_sliding_window\": true, \"max_window_layers\": 2"));
  EXPECT_FALSE(opens(ModelFamily::kQwen2,
                     window + ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]"));
  EXPECT_TRUE(opens(ModelFamily::kQwen2,
                    window + ", \"layer_types\": [\"full_attention\", \"full_attention\"]"));
  // These classes slide in every layer, whatever layer_types says.
  EXPECT_FALSE(opens(ModelFamily::kMistral,
                     window + ", \"layer_types\": [\"full_attention\", \"full_attention\"]"));
}

TEST(HfModelTest, AnAbsentWindowIsTheClasssDefault) {
  const auto opens = [](ModelFamily family, const std::string& extra) {
    ModelShape shape = TinyShape(family);
    shape.max_position = 8192;
    return OpenWith(shape, ConfigJson(shape, extra)).status();
  };
  EXPECT_THAT(std::string(opens(ModelFamily::kMistral, "").message()),
              HasSubstr("config.json: sliding_window is 4096"));
  EXPECT_TRUE(opens(ModelFamily::kMistral, ", \"sliding_window\": null").ok());
  EXPECT_TRUE(opens(ModelFamily::kLlama, "").ok());
  EXPECT_TRUE(opens(ModelFamily::kPhi3, "").ok());
  EXPECT_TRUE(opens(ModelFamily::kQwen2, "").ok());
  // Sliding starts at layer 28 unless max_window_layers says otherwise.
  EXPECT_TRUE(opens(ModelFamily::kQwen2, ", \"use_sliding_window\": true").ok());
  EXPECT_THAT(std::string(opens(ModelFamily::kQwen3,
                                ", \"use_sliding_window\": true, \"max_window_layers\": 0")
                              .message()),
              HasSubstr("sliding_window is 4096"));
}

TEST(HfModelTest, AbsentKvHeadsAreTheClasssDefault) {
  const auto kv_heads = [](ModelFamily family, int32_t num_kv_heads, const std::string& field) {
    ModelShape shape = TinyShape(family);
    shape.num_q_heads = 32;
    shape.num_kv_heads = num_kv_heads;
    std::string config = ConfigJson(shape, ", \"sliding_window\": null");
    const std::string written = "\"num_key_value_heads\": " + std::to_string(num_kv_heads) + ", ";
    config.replace(config.find(written), written.size(), field);
    const auto model = OpenWith(shape, config);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? (*model)->shape().num_kv_heads : 0;
  };
  EXPECT_EQ(kv_heads(ModelFamily::kMistral, 8, ""), 8);
  EXPECT_EQ(kv_heads(ModelFamily::kMistral, 32, "\"num_key_value_heads\": null, "), 32);
  EXPECT_EQ(kv_heads(ModelFamily::kLlama, 32, ""), 32);
  EXPECT_EQ(kv_heads(ModelFamily::kQwen3, 32, ""), 32);
}

TEST(HfModelTest, RefusesMalformedConfigs) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  const std::string good = ConfigJson(shape);
  const auto change = [&](const std::string& from, const std::string& to) {
    std::string config = good;
    config.replace(config.find(from), from.size(), to);
    return OpenWith(shape, config).status();
  };
  EXPECT_THAT(std::string(change("\"llama\"", "\"gpt2\"").message()), HasSubstr("model_type"));
  EXPECT_THAT(std::string(change("\"model_type\": \"llama\"", "\"a\": 1").message()),
              HasSubstr("model_type is missing"));
  EXPECT_THAT(std::string(change("\"hidden_size\": 64", "\"hidden_size\": 1e300").message()),
              HasSubstr("hidden_size"));
  EXPECT_THAT(std::string(change("\"hidden_size\": 64", "\"hidden_size\": -64").message()),
              HasSubstr("hidden_size"));
  EXPECT_THAT(std::string(change("\"hidden_size\": 64", "\"hidden_size\": 64.5").message()),
              HasSubstr("hidden_size is not an integer"));
  EXPECT_THAT(std::string(change("\"hidden_size\": 64", "\"hidden_size\": true").message()),
              HasSubstr("hidden_size is not an integer"));
  EXPECT_THAT(std::string(change("\"head_dim\": 16", "\"head_dim\": 20").message()),
              HasSubstr("head_dim"));
  EXPECT_THAT(std::string(change("\"vocab_size\": 48", "\"vocab_size\": 47").message()),
              HasSubstr("model.embed_tokens.weight has shape [48, 64]; wanted [47, 64]"));
  EXPECT_THAT(std::string(change("1e-05", "0").message()), HasSubstr("rms_norm_eps"));
  EXPECT_EQ(OpenWith(shape, good.substr(0, good.size() - 1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(change("\"hidden_size\": 64", "\"hidden_size\": 64.0").ok());
}

TEST(HfModelTest, ReadsTokenizerTemplateAndDefaults) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  TemporaryFolder folder;
  folder.Write("config.json", ConfigJson(shape, ", \"bos_token_id\": 1, \"eos_token_id\": 2"));
  folder.Write("model.safetensors", fakes::SafetensorsBytes(Tensors(shape), "F32"));
  folder.Write("generation_config.json",
               "{\"temperature\": 0.5, \"top_k\": 40, \"top_p\": 0.9, \"eos_token_id\": [3, 2]}");
  folder.Write("tokenizer.model", "\nsentencepiece");
  folder.Write("tokenizer_config.json",
               "{\"add_bos_token\": true, \"chat_template\": [{\"name\": \"tool_use\", "
               "\"template\": \"T\"}, {\"name\": \"default\", \"template\": \"D\"}]}");
  auto model = OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  using Kind = tokenizer::TokenizerSpec::Kind;
  EXPECT_EQ((*model)->tokenizer().kind, Kind::kSentencePiece);
  EXPECT_EQ((*model)->tokenizer().file, "\nsentencepiece");
  EXPECT_EQ((*model)->tokenizer().chat_template, "D");
  EXPECT_EQ((*model)->tokenizer().add_bos, true);
  EXPECT_EQ((*model)->tokenizer().bos_id, 1);
  EXPECT_THAT((*model)->generation_defaults().eos_token_ids, ElementsAre(3, 2));
  EXPECT_EQ((*model)->generation_defaults().temperature, 0.5f);
  EXPECT_EQ((*model)->generation_defaults().top_k, 40);
  EXPECT_FALSE((*model)->generation_defaults().min_p.has_value());

  folder.Write("tokenizer.json", "{}");
  folder.Write("chat_template.json", "{\"chat_template\": \"J\"}");
  model = OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tokenizer().kind, Kind::kTokenizerJson);
  EXPECT_EQ((*model)->tokenizer().file, "{}");
  EXPECT_EQ((*model)->tokenizer().chat_template, "J");
  folder.Write("chat_template.jinja", "F");
  model = OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tokenizer().chat_template, "F");

  folder.Write("generation_config.json", "{\"top_p\": 7}");
  EXPECT_THAT(std::string(OpenModel(folder.path()).status().message()),
              HasSubstr("generation_config.json: top_p is 7"));
}

TEST(HfModelTest, TellsTiktokenFromSentencePiece) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  TemporaryFolder folder;
  folder.Write("config.json", ConfigJson(shape));
  folder.Write("model.safetensors", fakes::SafetensorsBytes(Tensors(shape), "F32"));
  folder.Write("tokenizer.model", "IQ== 0\nIg== 1\n");
  const auto model = OpenModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tokenizer().kind, tokenizer::TokenizerSpec::Kind::kTiktoken);
}

TEST(HfModelTest, DummyWeightsNeedAConfigOnly) {
  const ModelShape shape = TinyShape(ModelFamily::kPhi3);
  TemporaryFolder folder;
  folder.Write("config.json", ConfigJson(shape));
  EXPECT_EQ(OpenModel(folder.path()).status().code(), absl::StatusCode::kNotFound);
  OpenOptions options;
  options.dummy_weights = true;
  const auto model = OpenModel(folder.path(), options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->tokenizer().kind, tokenizer::TokenizerSpec::Kind::kNone);
  EXPECT_EQ(Values(**model, WeightRole::kUp, 1).size(), 96u * 64u);
  EXPECT_GT((*model)->weight_bytes(), 0u);
}

TEST(OpenModelTest, NamesModelsByFileAndFolder) {
  const ModelShape shape = TinyShape(ModelFamily::kLlama);
  TemporaryFolder folder;
  const std::string file = folder.Write(
      "Tiny.Q4_1.gguf", fakes::GgufWriter()
                            .Model(shape, "llama")
                            .Tensors(fakes::ModelTensors(shape, fakes::FileNaming::kGguf, 1))
                            .Finish());
  const auto gguf = OpenModel(file);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ((*gguf)->name(), "Tiny.Q4_1");
  EXPECT_EQ(OpenModel(folder.path() + "/none.gguf").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(OpenModel(folder.Write("x.bin", "GGUF")).ok());
  EXPECT_FALSE(OpenModel(folder.Write("empty.gguf", "")).ok());
  folder.Write("config.json", ConfigJson(shape));
  folder.Write("model.safetensors", fakes::SafetensorsBytes(Tensors(shape), "F32"));
  const auto hf = OpenModel(folder.path() + "/");
  ASSERT_TRUE(hf.ok()) << hf.status();
  EXPECT_EQ("/" + (*hf)->name(), folder.path().substr(folder.path().rfind('/')));
}

TEST(OpenModelTest, OpensTheGoldenModels) {
  for (const std::string name :
       {"llama2-like", "llama3-like", "mistral-like", "qwen2-like", "qwen3-like"}) {
    const auto model = OpenModel(std::string(TANDEM_TEST_DATA "/goldens/") + name);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->name(), name);
    for (const float value : Values(**model, WeightRole::kQ, 1)) {
      ASSERT_TRUE(std::isfinite(value));
    }
  }
}

}  // namespace
}  // namespace tandem::model_files
