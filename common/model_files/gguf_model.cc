#include "common/model_files/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model_files/gguf_reader.h"
#include "common/model_files/gguf_tokenizer.h"
#include "common/model_files/rope_factors.h"

namespace tandem::model_files {
namespace {

// Bounds the values that ValidateModelShape checks afterwards; keeps them inside int32.
constexpr int64_t kMaxInt = int64_t{1} << 30;

class GgufModelReader {
 public:
  GgufModelReader(const GgufFile& gguf, const OpenOptions& options)
      : gguf_(gguf), options_(options) {}

  absl::StatusOr<ModelParts> Run() {
    TANDEM_RETURN_IF_ERROR(ReadArchitecture());
    TANDEM_RETURN_IF_ERROR(RefuseVariants());
    TANDEM_RETURN_IF_ERROR(ReadSizes());
    TANDEM_RETURN_IF_ERROR(ReadHeads());
    TANDEM_RETURN_IF_ERROR(ReadRope());
    if (absl::Status valid = ValidateModelShape(shape()); !valid.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(gguf_.file(), ": ", valid.message()));
    }
    TANDEM_RETURN_IF_ERROR(ReadRopeFactors());
    TANDEM_RETURN_IF_ERROR(ReadWindow());
    TANDEM_RETURN_IF_ERROR(ReadGgufTokenizer(gguf_, &parts_));
    TANDEM_RETURN_IF_ERROR(ReadSamplingDefaults());
    if (options_.dummy_weights) {
      AddDummyWeights(&parts_);
      return std::move(parts_);
    }
    WeightMapRequest request;
    request.scheme = NamingScheme::kGguf;
    request.permuted_qk = architecture_ == "llama";
    request.file = gguf_.file();
    TANDEM_ASSIGN_OR_RETURN(parts_.weights, BuildWeightMap(request, shape(), gguf_.tensors()));
    for (const auto& [name, tensor] : gguf_.tensors()) {
      parts_.weight_bytes += tensor.bytes;
    }
    return std::move(parts_);
  }

 private:
  ModelShape& shape() { return parts_.shape; }
  std::string Key(absl::string_view name) const { return absl::StrCat(architecture_, ".", name); }
  absl::Status Invalid(const std::string& field, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(gguf_.file(), ": ", field, " ", what));
  }
  absl::Status Unsupported(const std::string& field, absl::string_view what) const {
    return absl::UnimplementedError(absl::StrCat(gguf_.file(), ": ", field, " ", what));
  }

  absl::Status Size(absl::string_view name, int32_t* out) {
    const std::string key = Key(name);
    if (gguf_.IsArray(key)) {
      return UniformSize(key, out);
    }
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> value, gguf_.Int(key, 1, kMaxInt));
    if (!value) {
      return Invalid(key, "is missing");
    }
    *out = static_cast<int32_t>(*value);
    return absl::OkStatus();
  }

  // Some writers list a size per layer; ours must be the same in all.
  absl::Status UniformSize(const std::string& key, int32_t* out) {
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> values, gguf_.Ints(key));
    if (values.empty() || values[0] < 1 || values[0] > kMaxInt) {
      return Invalid(key, "holds no sizes");
    }
    if (std::any_of(values.begin(), values.end(), [&](int32_t v) { return v != values[0]; })) {
      return Unsupported(key, "differs between layers");
    }
    *out = values[0];
    return absl::OkStatus();
  }

  absl::Status ReadArchitecture() {
    const struct {
      const char* name;
      ModelFamily family;
    } known[] = {{"llama", ModelFamily::kLlama},
                 {"qwen2", ModelFamily::kQwen2},
                 {"qwen3", ModelFamily::kQwen3},
                 {"phi3", ModelFamily::kPhi3}};
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> name,
                            gguf_.String("general.architecture"));
    if (!name) {
      return Invalid("general.architecture", "is missing");
    }
    for (const auto& entry : known) {
      if (*name == entry.name) {
        architecture_ = *name;
        shape().family = entry.family;
        return absl::OkStatus();
      }
    }
    return Unsupported("general.architecture",
                       absl::StrCat("is ", absl::CHexEscape(name->substr(0, 40)),
                                    "; supported: llama (mistral models among them), qwen2, "
                                    "qwen3, phi3"));
  }

  // Keys that make another model of a known architecture.
  absl::Status RefuseVariants() {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> parts,
                            gguf_.Int("split.count", 0, kMaxInt));
    if (parts.value_or(1) > 1) {
      return Unsupported("split.count", "says that the model is split into several files");
    }
    for (const char* name : {"expert_count", "expert_used_count"}) {
      TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> count, gguf_.Int(Key(name), 0, kMaxInt));
      if (count.value_or(0) > 0) {
        return Unsupported(Key(name), "is set: mixtures of experts are not supported");
      }
    }
    for (const char* name :
         {"attention.logit_softcapping", "final_logit_softcapping", "logit_scale", "residual_scale",
          "embedding_scale", "attention.scale"}) {
      TANDEM_ASSIGN_OR_RETURN(const std::optional<double> value, gguf_.Number(Key(name)));
      if (value.value_or(0.0) != 0.0) {
        return Unsupported(Key(name), "is not supported");
      }
    }
    TANDEM_ASSIGN_OR_RETURN(const std::optional<bool> causal, gguf_.Bool(Key("attention.causal")));
    return causal.value_or(true) ? absl::OkStatus()
                                 : Unsupported(Key("attention.causal"), "is false");
  }

  absl::Status ReadSizes() {
    TANDEM_RETURN_IF_ERROR(Size("block_count", &shape().num_layers));
    TANDEM_RETURN_IF_ERROR(Size("context_length", &shape().max_position));
    TANDEM_RETURN_IF_ERROR(Size("embedding_length", &shape().hidden_size));
    TANDEM_RETURN_IF_ERROR(Size("feed_forward_length", &shape().intermediate_size));
    const std::string epsilon_key = Key("attention.layer_norm_rms_epsilon");
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> epsilon, gguf_.Number(epsilon_key));
    if (!epsilon) {
      return Invalid(epsilon_key, "is missing");
    }
    shape().rms_norm_eps = static_cast<float>(*epsilon);
    const auto& tensors = gguf_.tensors();
    shape().tied_embeddings = !tensors.contains("output.weight");
    shape().qkv_bias = tensors.contains("blk.0.attn_q.bias");
    shape().qk_norm = shape().family == ModelFamily::kQwen3;
    const auto embedding = tensors.find("token_embd.weight");
    if (embedding == tensors.end()) {
      return ReadVocabSizeWithoutEmbedding();
    }
    const std::vector<int64_t>& dims = embedding->second.dims;
    if (dims.size() != 2 || dims[0] > kMaxInt) {
      return Invalid("tensor token_embd.weight", absl::StrCat("has shape ", DimsText(dims)));
    }
    shape().vocab_size = static_cast<int32_t>(dims[0]);
    return absl::OkStatus();
  }

  absl::Status ReadVocabSizeWithoutEmbedding() {
    if (!options_.dummy_weights) {
      return Invalid("tensor token_embd.weight", "is missing");
    }
    return Size("vocab_size", &shape().vocab_size);
  }

  absl::Status ReadHeads() {
    TANDEM_RETURN_IF_ERROR(Size("attention.head_count", &shape().num_q_heads));
    shape().num_kv_heads = shape().num_q_heads;
    if (gguf_.Has(Key("attention.head_count_kv"))) {
      TANDEM_RETURN_IF_ERROR(Size("attention.head_count_kv", &shape().num_kv_heads));
    }
    const bool has_key_length = gguf_.Has(Key("attention.key_length"));
    if (has_key_length) {
      TANDEM_RETURN_IF_ERROR(Size("attention.key_length", &shape().head_dim));
    } else if (shape().hidden_size % shape().num_q_heads != 0) {
      return Invalid(Key("attention.head_count"), "does not divide embedding_length");
    } else {
      shape().head_dim = shape().hidden_size / shape().num_q_heads;
    }
    for (const char* name : {"attention.value_length", "rope.dimension_count"}) {
      int32_t value = shape().head_dim;
      if (gguf_.Has(Key(name))) {
        TANDEM_RETURN_IF_ERROR(Size(name, &value));
      }
      if (value != shape().head_dim) {
        return Unsupported(
            Key(name), absl::StrCat("is ", value, ", not the heads' dimension ", shape().head_dim));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadRope() {
    RopeShape& rope = shape().rope;
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> theta, gguf_.Number(Key("rope.freq_base")));
    rope.theta = theta.value_or(10000.0);
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> type,
                            gguf_.String(Key("rope.scaling.type")));
    TANDEM_ASSIGN_OR_RETURN(std::optional<double> factor, gguf_.Number(Key("rope.scaling.factor")));
    if (!factor) {  // the key of older files
      TANDEM_ASSIGN_OR_RETURN(factor, gguf_.Number(Key("rope.scale_linear")));
    }
    if (type && *type != "none" && *type != "linear") {
      return Unsupported(Key("rope.scaling.type"),
                         absl::StrCat("is ", absl::CHexEscape(type->substr(0, 40)),
                                      "; supported: none, linear (and llama3 by "
                                      "rope_freqs.weight)"));
    }
    const bool linear = type ? *type == "linear" : factor.value_or(1.0) != 1.0;
    if (!linear) {
      return absl::OkStatus();
    }
    if (!factor || !(*factor >= 1.0 && *factor <= 1024.0)) {
      return Invalid(Key("rope.scaling.factor"), "is missing or not between 1 and 1024");
    }
    rope.scaling = RopeShape::Scaling::kLinear;
    rope.factor = *factor;
    // The context length of such files is the one before scaling.
    const double scaled = static_cast<double>(shape().max_position) * *factor;
    if (scaled > static_cast<double>(kMaxInt)) {
      return Invalid(Key("context_length"), "is too large for its rope scaling");
    }
    shape().max_position = static_cast<int32_t>(scaled);
    return absl::OkStatus();
  }

  absl::Status ReadRopeFactors() {
    for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
      if (gguf_.tensors().contains(name)) {
        return Unsupported(absl::StrCat("tensor ", name), "belongs to long rope");
      }
    }
    const auto found = gguf_.tensors().find("rope_freqs.weight");
    if (found == gguf_.tensors().end()) {
      return absl::OkStatus();
    }
    const StoredTensor& tensor = found->second;
    const int64_t count = shape().head_dim / 2;
    if (tensor.type != TensorType::kF32 || tensor.dims != std::vector<int64_t>{count}) {
      return Invalid("tensor rope_freqs.weight", absl::StrCat("has shape ", DimsText(tensor.dims),
                                                              "; wanted F32 [", count, "]"));
    }
    WeightView view;
    view.rows = 1;
    view.cols = count;
    view.data = tensor.data;
    std::vector<float> factors(static_cast<size_t>(count));
    ReadRows(view, 0, 1, factors.data());
    const std::optional<RopeShape> rope = RopeFromFactors(factors, shape().rope.theta);
    if (!rope || shape().rope.scaling != RopeShape::Scaling::kNone) {
      return Unsupported("tensor rope_freqs.weight", "holds factors of no known rope scaling");
    }
    shape().rope = *rope;
    return absl::OkStatus();
  }

  absl::Status ReadWindow() {
    const std::string key = Key("attention.sliding_window");
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> window,
                            gguf_.Int(key, 0, int64_t{UINT32_MAX}));
    if (window.value_or(0) == 0) {
      return absl::OkStatus();
    }
    return CheckSlidingWindow(*window, shape(), options_, absl::StrCat(gguf_.file(), ": ", key));
  }

  absl::Status ReadSamplingDefaults() {
    GenerationDefaults& defaults = parts_.defaults;
    TANDEM_RETURN_IF_ERROR(Default("temp", 0.0, 100.0, &defaults.temperature));
    TANDEM_RETURN_IF_ERROR(Default("top_p", 1e-6, 1.0, &defaults.top_p));
    TANDEM_RETURN_IF_ERROR(Default("min_p", 0.0, 1.0, &defaults.min_p));
    TANDEM_RETURN_IF_ERROR(Default("penalty_repeat", 1e-3, 100.0, &defaults.repetition_penalty));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> top_k,
                            gguf_.Int("general.sampling.top_k", -1, kMaxInt));
    if (top_k) {
      defaults.top_k = static_cast<int32_t>(*top_k);
    }
    return absl::OkStatus();
  }

  absl::Status Default(absl::string_view name, double min, double max, std::optional<float>* out) {
    const std::string key = absl::StrCat("general.sampling.", name);
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> value, gguf_.Number(key));
    if (value && !(*value >= min && *value <= max)) {
      return Invalid(key, absl::StrCat("is ", *value, "; allowed: ", min, " to ", max));
    }
    if (value) {
      *out = static_cast<float>(*value);
    }
    return absl::OkStatus();
  }

  const GgufFile& gguf_;
  const OpenOptions& options_;
  std::string architecture_;
  ModelParts parts_;
};

}  // namespace

absl::StatusOr<ModelParts> ReadGgufModel(std::span<const std::byte> bytes, const std::string& file,
                                         const OpenOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(bytes, file));
  return GgufModelReader(gguf, options).Run();
}

}  // namespace tandem::model_files
