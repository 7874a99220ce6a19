#include "tests/fakes/model_writer.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

namespace tandem::fakes {
namespace {

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string Text(const std::string& text) { return Bytes<uint64_t>(text.size()) + text; }

// Multiples of 1/64 between -1 and 1: exact in every 16-bit format.
std::vector<float> RandomValues(int64_t count, std::mt19937_64* random) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = static_cast<float>(static_cast<int>((*random)() % 129) - 64) / 64.0f;
  }
  return values;
}

class TensorList {
 public:
  TensorList(FileNaming naming, uint64_t seed) : naming_(naming), random_(seed) {}

  void Add(const std::string& hugging_face, const std::string& gguf, std::vector<int64_t> dims) {
    int64_t count = 1;
    for (const int64_t dim : dims) {
      count *= dim;
    }
    list.push_back({naming_ == FileNaming::kGguf ? gguf : hugging_face, std::move(dims),
                    RandomValues(count, &random_)});
  }

  std::vector<NamedTensor> list;

 private:
  FileNaming naming_;
  std::mt19937_64 random_;
};

void AddLayer(const ModelShape& shape, int layer, TensorList* to) {
  const std::string hf = "model.layers." + std::to_string(layer) + ".";
  const std::string gguf = "blk." + std::to_string(layer) + ".";
  const int64_t hidden = shape.hidden_size;
  to->Add(hf + "input_layernorm.weight", gguf + "attn_norm.weight", {hidden});
  to->Add(hf + "post_attention_layernorm.weight", gguf + "ffn_norm.weight", {hidden});
  to->Add(hf + "self_attn.o_proj.weight", gguf + "attn_output.weight", {hidden, shape.q_size()});
  to->Add(hf + "mlp.down_proj.weight", gguf + "ffn_down.weight", {hidden, shape.intermediate_size});
  if (shape.family == ModelFamily::kPhi3) {
    to->Add(hf + "self_attn.qkv_proj.weight", gguf + "attn_qkv.weight",
            {shape.q_size() + 2 * shape.kv_size(), hidden});
    to->Add(hf + "mlp.gate_up_proj.weight", gguf + "ffn_up.weight",
            {2 * shape.intermediate_size, hidden});
    return;
  }
  to->Add(hf + "self_attn.q_proj.weight", gguf + "attn_q.weight", {shape.q_size(), hidden});
  to->Add(hf + "self_attn.k_proj.weight", gguf + "attn_k.weight", {shape.kv_size(), hidden});
  to->Add(hf + "self_attn.v_proj.weight", gguf + "attn_v.weight", {shape.kv_size(), hidden});
  to->Add(hf + "mlp.gate_proj.weight", gguf + "ffn_gate.weight", {shape.intermediate_size, hidden});
  to->Add(hf + "mlp.up_proj.weight", gguf + "ffn_up.weight", {shape.intermediate_size, hidden});
  if (shape.qkv_bias) {
    to->Add(hf + "self_attn.q_proj.bias", gguf + "attn_q.bias", {shape.q_size()});
    to->Add(hf + "self_attn.k_proj.bias", gguf + "attn_k.bias", {shape.kv_size()});
    to->Add(hf + "self_attn.v_proj.bias", gguf + "attn_v.bias", {shape.kv_size()});
  }
  if (shape.qk_norm) {
    to->Add(hf + "self_attn.q_norm.weight", gguf + "attn_q_norm.weight", {shape.head_dim});
    to->Add(hf + "self_attn.k_norm.weight", gguf + "attn_k_norm.weight", {shape.head_dim});
  }
}

const char* ModelType(ModelFamily family) {
  switch (family) {
    case ModelFamily::kLlama:
      return "llama";
    case ModelFamily::kMistral:
      return "mistral";
    case ModelFamily::kQwen2:
      return "qwen2";
    case ModelFamily::kQwen3:
      return "qwen3";
    case ModelFamily::kPhi3:
      return "phi3";
  }
  return "";
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

std::vector<NamedTensor> ModelTensors(const ModelShape& shape, FileNaming naming, uint64_t seed) {
  TensorList tensors(naming, seed);
  tensors.Add("model.embed_tokens.weight", "token_embd.weight",
              {shape.vocab_size, shape.hidden_size});
  tensors.Add("model.norm.weight", "output_norm.weight", {shape.hidden_size});
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    AddLayer(shape, layer, &tensors);
  }
  if (!shape.tied_embeddings) {
    tensors.Add("lm_head.weight", "output.weight", {shape.vocab_size, shape.hidden_size});
  }
  return std::move(tensors.list);
}

void PermuteHeads(NamedTensor* tensor, int64_t heads) {
  const int64_t rows = tensor->dims[0];
  const int64_t cols = tensor->dims.size() > 1 ? tensor->dims[1] : 1;
  const int64_t head_dim = rows / heads;
  std::vector<float> permuted(tensor->values.size());
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t pair = 0; pair < head_dim / 2; ++pair) {
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t from = head * head_dim + half * (head_dim / 2) + pair;
        const int64_t to = head * head_dim + pair * 2 + half;
        std::copy_n(tensor->values.begin() + from * cols, cols, permuted.begin() + to * cols);
      }
    }
  }
  tensor->values = std::move(permuted);
}

ModelShape TinyShape(ModelFamily family) {
  ModelShape shape;
  shape.family = family;
  shape.num_layers = 2;
  shape.hidden_size = 64;
  shape.intermediate_size = 96;
  shape.num_q_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 16;
  shape.vocab_size = 48;
  shape.max_position = 512;
  shape.qkv_bias = family == ModelFamily::kQwen2;
  shape.qk_norm = family == ModelFamily::kQwen3;
  shape.tied_embeddings = family == ModelFamily::kQwen2;
  return shape;
}

std::string ConfigJson(const ModelShape& shape, const std::string& extra) {
  std::ostringstream json;
  json << "{\"model_type\": \"" << ModelType(shape.family) << "\""
       << ", \"hidden_size\": " << shape.hidden_size
       << ", \"intermediate_size\": " << shape.intermediate_size
       << ", \"num_hidden_layers\": " << shape.num_layers
       << ", \"num_attention_heads\": " << shape.num_q_heads
       << ", \"num_key_value_heads\": " << shape.num_kv_heads
       << ", \"head_dim\": " << shape.head_dim << ", \"vocab_size\": " << shape.vocab_size
       << ", \"max_position_embeddings\": " << shape.max_position
       << ", \"rms_norm_eps\": 1e-05, \"tie_word_embeddings\": "
       << (shape.tied_embeddings ? "true" : "false") << extra << "}";
  return json.str();
}

std::string EncodeF32(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string EncodeBF16(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) {
    bytes += Bytes(static_cast<uint16_t>(BitsOf(value) >> 16));
  }
  return bytes;
}

std::string EncodeF16(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) {
    const uint32_t bits = BitsOf(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t rest =
        value == 0.0f ? 0u : (((bits >> 23 & 0xffu) - 112u) << 10 | (bits >> 13 & 0x3ffu));
    bytes += Bytes(static_cast<uint16_t>(sign | rest));
  }
  return bytes;
}

std::string SafetensorsOf(const std::string& header, const std::string& data) {
  return Bytes<uint64_t>(header.size()) + header + data;
}

std::string SafetensorsBytes(const std::vector<NamedTensor>& tensors, const std::string& dtype,
                             int padding) {
  std::ostringstream header;
  std::string data;
  header << "{\"__metadata__\": {\"format\": \"pt\"}";
  for (const NamedTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += dtype == "F32"    ? EncodeF32(tensor.values)
            : dtype == "BF16" ? EncodeBF16(tensor.values)
                              : EncodeF16(tensor.values);
    header << ", \"" << tensor.name << "\": {\"dtype\": \"" << dtype << "\", \"shape\": [";
    for (size_t i = 0; i < tensor.dims.size(); ++i) {
      header << (i == 0 ? "" : ", ") << tensor.dims[i];
    }
    header << "], \"data_offsets\": [" << begin << ", " << data.size() << "]}";
  }
  header << "}" << std::string(static_cast<size_t>(padding), ' ');
  return SafetensorsOf(header.str(), data);
}

GgufWriter& GgufWriter::Raw(const std::string& key, uint32_t type, const std::string& bytes) {
  values_.push_back(Text(key) + Bytes(type) + bytes);
  return *this;
}
GgufWriter& GgufWriter::UInt32(const std::string& key, uint32_t value) {
  return Raw(key, 4, Bytes(value));
}
GgufWriter& GgufWriter::Float32(const std::string& key, float value) {
  return Raw(key, 6, Bytes(value));
}
GgufWriter& GgufWriter::Bool(const std::string& key, bool value) {
  return Raw(key, 7, Bytes(static_cast<uint8_t>(value ? 1 : 0)));
}
GgufWriter& GgufWriter::String(const std::string& key, const std::string& value) {
  return Raw(key, 8, Text(value));
}
GgufWriter& GgufWriter::Strings(const std::string& key, const std::vector<std::string>& values) {
  std::string bytes = Bytes(uint32_t{8}) + Bytes<uint64_t>(values.size());
  for (const std::string& value : values) {
    bytes += Text(value);
  }
  return Raw(key, 9, bytes);
}
GgufWriter& GgufWriter::Floats(const std::string& key, const std::vector<float>& values) {
  return Raw(key, 9, Bytes(uint32_t{6}) + Bytes<uint64_t>(values.size()) + EncodeF32(values));
}
GgufWriter& GgufWriter::Ints(const std::string& key, const std::vector<int32_t>& values) {
  std::string bytes = Bytes(uint32_t{5}) + Bytes<uint64_t>(values.size());
  for (const int32_t value : values) {
    bytes += Bytes(value);
  }
  return Raw(key, 9, bytes);
}

GgufWriter& GgufWriter::Tensor(const std::string& name, std::vector<int64_t> dims, uint32_t type,
                               const std::string& bytes) {
  tensors_.push_back({name, std::move(dims), type, bytes});
  return *this;
}

GgufWriter& GgufWriter::Tensors(const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& tensor : tensors) {
    Tensor(tensor.name, tensor.dims, 0, EncodeF32(tensor.values));
  }
  return *this;
}

GgufWriter& GgufWriter::Model(const ModelShape& shape, const std::string& architecture) {
  const std::string prefix = architecture + ".";
  String("general.architecture", architecture);
  UInt32(prefix + "block_count", static_cast<uint32_t>(shape.num_layers));
  UInt32(prefix + "context_length", static_cast<uint32_t>(shape.max_position));
  UInt32(prefix + "embedding_length", static_cast<uint32_t>(shape.hidden_size));
  UInt32(prefix + "feed_forward_length", static_cast<uint32_t>(shape.intermediate_size));
  UInt32(prefix + "attention.head_count", static_cast<uint32_t>(shape.num_q_heads));
  UInt32(prefix + "attention.head_count_kv", static_cast<uint32_t>(shape.num_kv_heads));
  UInt32(prefix + "attention.key_length", static_cast<uint32_t>(shape.head_dim));
  UInt32(prefix + "attention.value_length", static_cast<uint32_t>(shape.head_dim));
  Float32(prefix + "attention.layer_norm_rms_epsilon", shape.rms_norm_eps);
  Float32(prefix + "rope.freq_base", static_cast<float>(shape.rope.theta));
  String("tokenizer.ggml.model", "gpt2");
  String("tokenizer.ggml.pre", "smollm");
  std::vector<std::string> tokens;
  for (int32_t i = 0; i < shape.vocab_size; ++i) {
    tokens.push_back("token" + std::to_string(i));
  }
  Strings("tokenizer.ggml.tokens", tokens);
  Ints("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 1));
  Strings("tokenizer.ggml.merges", {"t o", "to k"});
  UInt32("tokenizer.ggml.bos_token_id", 1);
  UInt32("tokenizer.ggml.eos_token_id", 2);
  String("tokenizer.chat_template", "{{ messages }}");
  return *this;
}

std::string GgufWriter::Finish() const {
  std::string file =
      "GGUF" + Bytes(version) + Bytes<uint64_t>(tensors_.size()) + Bytes<uint64_t>(values_.size());
  for (const std::string& value : values_) {
    file += value;
  }
  const auto pad = [this](std::string* to) {
    while (to->size() % alignment != 0) {
      to->push_back('\0');
    }
  };
  std::string data;
  for (const Entry& tensor : tensors_) {
    pad(&data);
    file += Text(tensor.name) + Bytes(static_cast<uint32_t>(tensor.dims.size()));
    for (auto dim = tensor.dims.rbegin(); dim != tensor.dims.rend(); ++dim) {
      file += Bytes(static_cast<uint64_t>(*dim));
    }
    file += Bytes(tensor.type) + Bytes<uint64_t>(data.size());
    data += tensor.bytes;
  }
  pad(&file);
  return file + data;
}

TemporaryFolder::TemporaryFolder() {
  static std::atomic<int> next{0};
  path_ = (std::filesystem::temp_directory_path() /
           ("tandem-test-" + std::to_string(getpid()) + "-" + std::to_string(next++)))
              .string();
  std::filesystem::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string TemporaryFolder::Write(const std::string& name, const std::string& bytes) const {
  const std::string file = path_ + "/" + name;
  std::ofstream(file, std::ios::binary) << bytes;
  return file;
}

}  // namespace tandem::fakes
