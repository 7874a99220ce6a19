#include "common/model_files/hf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model_files/json_fields.h"
#include "nlohmann/json.hpp"

namespace tandem::model_files {
namespace {

using nlohmann::json;

constexpr int64_t kMaxInt = int64_t{1} << 30;
// Defaults of transformers' mistral, qwen2 and qwen3 classes, in force where a field is absent.
constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kDefaultMaxWindowLayers = 28;  // of the qwen classes

struct Family {
  const char* model_type;
  const char* architecture;
  ModelFamily family;
};
constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", ModelFamily::kLlama},
    {"mistral", "MistralForCausalLM", ModelFamily::kMistral},
    {"qwen2", "Qwen2ForCausalLM", ModelFamily::kQwen2},
    {"qwen3", "Qwen3ForCausalLM", ModelFamily::kQwen3},
    {"phi3", "Phi3ForCausalLM", ModelFamily::kPhi3},
};

// Token ids of a field that holds one or a list.
absl::StatusOr<std::vector<int32_t>> TokenIds(const JsonFields& fields, const char* name,
                                              int32_t vocab_size) {
  std::vector<int32_t> ids;
  const json* value = fields.Any(name);
  if (value == nullptr) {
    return ids;
  }
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& item : list) {
    if (!item.is_number_integer()) {
      return fields.Invalid(name, "is neither a token id nor a list of them");
    }
    const int64_t id = item.get<int64_t>();
    if (id < 0 || id >= vocab_size) {
      return fields.Invalid(name, absl::StrCat("holds ", id, "; allowed: 0 to ", vocab_size - 1));
    }
    if (std::find(ids.begin(), ids.end(), static_cast<int32_t>(id)) == ids.end()) {
      ids.push_back(static_cast<int32_t>(id));
    }
  }
  return ids;
}

class ConfigReader {
 public:
  ConfigReader(const json& config, const std::string& file, const OpenOptions& options,
               ModelParts* parts)
      : fields_(config, file), options_(options), parts_(*parts) {}

  absl::Status Run() {
    TANDEM_RETURN_IF_ERROR(ReadFamily());
    TANDEM_RETURN_IF_ERROR(RefuseVariants());
    TANDEM_RETURN_IF_ERROR(ReadSizes());
    TANDEM_RETURN_IF_ERROR(ReadHeads());
    TANDEM_RETURN_IF_ERROR(ReadFlags());
    TANDEM_RETURN_IF_ERROR(ReadRope());
    if (absl::Status valid = ValidateModelShape(shape()); !valid.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(fields_.file(), ": ", valid.message()));
    }
    TANDEM_RETURN_IF_ERROR(ReadWindow());
    return ReadTokenIds();
  }

 private:
  ModelShape& shape() { return parts_.shape; }

  absl::Status ReadFamily() {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> type, fields_.String("model_type"));
    if (!type) {
      return fields_.Invalid("model_type", "is missing");
    }
    const Family* found = nullptr;
    for (const Family& family : kFamilies) {
      found = *type == family.model_type ? &family : found;
    }
    if (found == nullptr) {
      return fields_.Unsupported("model_type",
                                 absl::StrCat("is ", type->substr(0, 40),
                                              "; supported: llama, mistral, qwen2, qwen3, phi3"));
    }
    TANDEM_ASSIGN_OR_RETURN(const json* architectures, fields_.Array("architectures"));
    if (architectures != nullptr && !architectures->empty()) {
      const json& first = architectures->front();
      if (!first.is_string() || first.get_ref<const std::string&>() != found->architecture) {
        return fields_.Unsupported("architectures",
                                   absl::StrCat("does not say ", found->architecture,
                                                ", the one that is supported for this model_type"));
      }
    }
    shape().family = found->family;
    return absl::OkStatus();
  }

  // Fields that make another model of a known type.
  absl::Status RefuseVariants() {
    if (fields_.Any("quantization_config") != nullptr) {
      return fields_.Unsupported("quantization_config",
                                 "is there: weights must be F32, F16 or BF16");
    }
    for (const char* name : {"attention_bias", "mlp_bias"}) {
      TANDEM_ASSIGN_OR_RETURN(const std::optional<bool> bias, fields_.Bool(name));
      if (bias.value_or(false)) {
        return fields_.Unsupported(name, "is true");
      }
    }
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> field, fields_.String("hidden_act"));
    const std::string activation = field.value_or("silu");
    if (activation != "silu" && activation != "swish") {
      return fields_.Unsupported(
          "hidden_act", absl::StrCat("is ", activation.substr(0, 40), "; supported: silu"));
    }
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> partial,
                            fields_.Number("partial_rotary_factor"));
    if (partial.value_or(1.0) != 1.0) {
      return fields_.Unsupported("partial_rotary_factor", "is not 1");
    }
    return absl::OkStatus();
  }

  absl::Status Size(const char* name, std::optional<int32_t> fallback, int32_t* out) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> value, fields_.Int(name, 1, kMaxInt));
    if (!value && !fallback) {
      return fields_.Invalid(name, "is missing");
    }
    *out = value ? static_cast<int32_t>(*value) : *fallback;
    return absl::OkStatus();
  }

  absl::Status ReadSizes() {
    TANDEM_RETURN_IF_ERROR(Size("num_hidden_layers", {}, &shape().num_layers));
    TANDEM_RETURN_IF_ERROR(Size("hidden_size", {}, &shape().hidden_size));
    TANDEM_RETURN_IF_ERROR(Size("intermediate_size", {}, &shape().intermediate_size));
    TANDEM_RETURN_IF_ERROR(Size("vocab_size", {}, &shape().vocab_size));
    TANDEM_RETURN_IF_ERROR(Size("max_position_embeddings", {}, &shape().max_position));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> epsilon, fields_.Number("rms_norm_eps"));
    // The default of every one of these classes but phi3's.
    shape().rms_norm_eps =
        static_cast<float>(epsilon.value_or(shape().family == ModelFamily::kPhi3 ? 1e-5 : 1e-6));
    return absl::OkStatus();
  }

  // What the family's class has where the field is absent; null means one per query head.
  int32_t DefaultKvHeads() {
    const ModelFamily family = shape().family;
    if (!fields_.Has("num_key_value_heads") && family == ModelFamily::kMistral) {
      return 8;
    }
    const bool qwen = family == ModelFamily::kQwen2 || family == ModelFamily::kQwen3;
    return !fields_.Has("num_key_value_heads") && qwen ? 32 : shape().num_q_heads;
  }

  absl::Status ReadHeads() {
    TANDEM_RETURN_IF_ERROR(Size("num_attention_heads", {}, &shape().num_q_heads));
    TANDEM_RETURN_IF_ERROR(Size("num_key_value_heads", DefaultKvHeads(), &shape().num_kv_heads));
    std::optional<int32_t> head_dim;
    if (shape().family == ModelFamily::kQwen3) {
      head_dim = 128;  // that class's default, whatever hidden_size says
    } else if (shape().hidden_size % shape().num_q_heads == 0) {
      head_dim = shape().hidden_size / shape().num_q_heads;
    }
    return Size("head_dim", head_dim, &shape().head_dim);
  }

  absl::Status ReadFlags() {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<bool> tied, fields_.Bool("tie_word_embeddings"));
    shape().tied_embeddings = tied.value_or(false);
    shape().qkv_bias = shape().family == ModelFamily::kQwen2;
    shape().qk_norm = shape().family == ModelFamily::kQwen3;
    return absl::OkStatus();
  }

  absl::Status ReadRope() {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> theta, fields_.Number("rope_theta"));
    shape().rope.theta = theta.value_or(10000.0);
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
      TANDEM_ASSIGN_OR_RETURN(const json* parameters, fields_.Object(name));
      if (parameters == nullptr) {
        continue;
      }
      const JsonFields outer(*parameters, fields_.file(), name);
      // A table per kind of attention; of the kinds only full attention is supported.
      TANDEM_ASSIGN_OR_RETURN(const json* full, outer.Object("full_attention"));
      TANDEM_RETURN_IF_ERROR(
          full == nullptr ? ReadRopeParameters(outer)
                          : ReadRopeParameters(JsonFields(*full, fields_.file(),
                                                          absl::StrCat(name, ".full_attention"))));
    }
    return absl::OkStatus();
  }

  absl::Status ReadRopeParameters(const JsonFields& rope) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> theta, rope.Number("rope_theta"));
    shape().rope.theta = theta.value_or(shape().rope.theta);
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> partial,
                            rope.Number("partial_rotary_factor"));
    if (partial.value_or(1.0) != 1.0) {
      return rope.Unsupported("partial_rotary_factor", "is not 1");
    }
    const char* type_field = rope.Any("rope_type") != nullptr ? "rope_type" : "type";
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> type, rope.String(type_field));
    if (!type && rope.Any("factor") != nullptr) {
      return rope.Invalid("rope_type", "is missing beside factor");
    }
    if (!type || *type == "default") {
      return absl::OkStatus();
    }
    if (*type != "linear" && *type != "llama3") {
      return rope.Unsupported(type_field, absl::StrCat("is ", type->substr(0, 40),
                                                       "; supported: default, linear, llama3"));
    }
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> factor, rope.Number("factor"));
    if (!factor || !(*factor >= 1.0 && *factor <= 1024.0)) {
      return rope.Invalid("factor", "is missing or not between 1 and 1024");
    }
    shape().rope.factor = *factor;
    return *type == "linear" ? ReadLinear() : ReadLlama3(rope);
  }

  absl::Status ReadLinear() {
    shape().rope.scaling = RopeShape::Scaling::kLinear;
    // max_position_embeddings is the length before this scaling (with llama3 the one after).
    const double scaled = static_cast<double>(shape().max_position) * shape().rope.factor;
    if (scaled > static_cast<double>(kMaxInt)) {
      return fields_.Invalid("max_position_embeddings", "is too large for its rope scaling");
    }
    shape().max_position = static_cast<int32_t>(scaled);
    return absl::OkStatus();
  }

  absl::Status ReadLlama3(const JsonFields& rope) {
    RopeShape& to = shape().rope;
    to.scaling = RopeShape::Scaling::kLlama3;
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> low, rope.Number("low_freq_factor"));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<double> high, rope.Number("high_freq_factor"));
    if (!low || !(*low > 0.0 && *low < 1e6)) {
      return rope.Invalid("low_freq_factor", "is missing or not positive");
    }
    if (!high || !(*high > *low && *high < 1e6)) {
      return rope.Invalid("high_freq_factor", "is missing or not above low_freq_factor");
    }
    to.low_freq_factor = *low;
    to.high_freq_factor = *high;
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> original,
                            rope.Int("original_max_position_embeddings", 1, kMaxInt));
    if (!original) {
      return rope.Invalid("original_max_position_embeddings", "is missing");
    }
    to.original_max_position = static_cast<int32_t>(*original);
    return absl::OkStatus();
  }

  // Whether some layer of layer_types slides; nullopt without the field.
  absl::StatusOr<std::optional<bool>> SlidingLayerType() {
    TANDEM_ASSIGN_OR_RETURN(const json* types, fields_.Array("layer_types"));
    if (types == nullptr) {
      return std::optional<bool>();
    }
    bool sliding = false;
    for (const json& type : *types) {
      if (!type.is_string()) {
        return fields_.Invalid("layer_types", "holds something else than names");
      }
      const std::string& name = type.get_ref<const std::string&>();
      if (name != "full_attention" && name != "sliding_attention") {
        return fields_.Unsupported("layer_types", absl::StrCat("holds ", name.substr(0, 40)));
      }
      sliding = sliding || name == "sliding_attention";
    }
    return std::optional<bool>(sliding);
  }

  // Whether some layer looks back no further than sliding_window. Only the qwen classes choose by
  // layer; the others know no layer_types.
  absl::StatusOr<bool> UsesWindow() {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<bool> by_layer, SlidingLayerType());
    if (shape().family != ModelFamily::kQwen2 && shape().family != ModelFamily::kQwen3) {
      return true;
    }
    if (by_layer) {
      return *by_layer;
    }
    TANDEM_ASSIGN_OR_RETURN(const std::optional<bool> used, fields_.Bool("use_sliding_window"));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> first,
                            fields_.Int("max_window_layers", 0, kMaxInt));
    return used.value_or(false) && first.value_or(kDefaultMaxWindowLayers) < shape().num_layers;
  }

  absl::Status ReadWindow() {
    TANDEM_ASSIGN_OR_RETURN(std::optional<int64_t> window,
                            fields_.Int("sliding_window", 0, int64_t{1} << 40));
    const bool has_default =
        shape().family != ModelFamily::kLlama && shape().family != ModelFamily::kPhi3;
    if (has_default && !fields_.Has("sliding_window")) {
      window = kDefaultWindow;
    }
    TANDEM_ASSIGN_OR_RETURN(const bool used, UsesWindow());
    if (window.value_or(0) == 0 || !used) {
      return absl::OkStatus();
    }
    return CheckSlidingWindow(*window, shape(), options_,
                              absl::StrCat(fields_.file(), ": sliding_window"));
  }

  absl::Status ReadTokenIds() {
    const int32_t vocab_size = shape().vocab_size;
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int32_t> bos,
                            TokenIds(fields_, "bos_token_id", vocab_size));
    TANDEM_ASSIGN_OR_RETURN(parts_.defaults.eos_token_ids,
                            TokenIds(fields_, "eos_token_id", vocab_size));
    if (!bos.empty()) {
      parts_.tokenizer.bos_id = bos.front();
    }
    if (!parts_.defaults.eos_token_ids.empty()) {
      parts_.tokenizer.eos_id = parts_.defaults.eos_token_ids.front();
    }
    return absl::OkStatus();
  }

  const JsonFields fields_;
  const OpenOptions& options_;
  ModelParts& parts_;
};

absl::Status ReadDefault(const JsonFields& fields, const char* name, double min, double max,
                         std::optional<float>* out) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<double> value, fields.Number(name));
  if (value && !(*value >= min && *value <= max)) {
    return fields.Invalid(name, absl::StrCat("is ", *value, "; allowed: ", min, " to ", max));
  }
  if (value) {
    *out = static_cast<float>(*value);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadHfConfig(absl::string_view text, const std::string& file,
                          const OpenOptions& options, ModelParts* parts) {
  TANDEM_ASSIGN_OR_RETURN(const json config, ParseJsonObject(text, file));
  return ConfigReader(config, file, options, parts).Run();
}

absl::Status ReadGenerationConfig(absl::string_view text, const std::string& file,
                                  ModelParts* parts) {
  TANDEM_ASSIGN_OR_RETURN(const json config, ParseJsonObject(text, file));
  const JsonFields fields(config, file);
  GenerationDefaults& defaults = parts->defaults;
  TANDEM_RETURN_IF_ERROR(ReadDefault(fields, "temperature", 0.0, 100.0, &defaults.temperature));
  TANDEM_RETURN_IF_ERROR(ReadDefault(fields, "top_p", 1e-6, 1.0, &defaults.top_p));
  TANDEM_RETURN_IF_ERROR(ReadDefault(fields, "min_p", 0.0, 1.0, &defaults.min_p));
  TANDEM_RETURN_IF_ERROR(
      ReadDefault(fields, "repetition_penalty", 1e-3, 100.0, &defaults.repetition_penalty));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> top_k, fields.Int("top_k", -1, kMaxInt));
  if (top_k) {
    defaults.top_k = static_cast<int32_t>(*top_k);
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<int32_t> eos,
                          TokenIds(fields, "eos_token_id", parts->shape.vocab_size));
  if (!eos.empty()) {
    defaults.eos_token_ids = std::move(eos);
  }
  return absl::OkStatus();
}

}  // namespace tandem::model_files
