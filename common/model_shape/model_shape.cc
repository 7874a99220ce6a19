#include "common/model_shape/model_shape.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace tandem {

const char* DTypeName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
    case DType::kInt8:
      return "int8";
    case DType::kFloat8E4M3:
      return "fp8_e4m3";
  }
  return "unknown";
}

std::optional<DType> DTypeOfName(std::string_view name) {
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8, DType::kFloat8E4M3}) {
    if (name == DTypeName(dtype)) {
      return dtype;
    }
  }
  return std::nullopt;
}

namespace {

// Bounds that keep every product of two sizes inside 63 bits and refuse absurd files early.
constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxVocab = 1 << 22;
constexpr int32_t kMaxHeads = 1024;
constexpr double kMaxRopeTheta = 1e15;  // far over published models; infinity turns nothing

absl::Status InRange(const char* field, int64_t value, int64_t max) {
  if (value < 1 || value > max) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; allowed: 1 to ", max));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateModelShape(const ModelShape& shape) {
  // As config.json names them, and GGUF files after the slash.
  const struct {
    const char* field;
    int32_t value;
    int32_t max;
  } fields[] = {
      {"num_hidden_layers / block_count", shape.num_layers, kMaxLayers},
      {"hidden_size / embedding_length", shape.hidden_size, kMaxWidth},
      {"intermediate_size / feed_forward_length", shape.intermediate_size, kMaxWidth},
      {"num_attention_heads / attention.head_count", shape.num_q_heads, kMaxHeads},
      {"num_key_value_heads / attention.head_count_kv", shape.num_kv_heads, kMaxHeads},
      {"vocab_size", shape.vocab_size, kMaxVocab},
      {"head_dim / attention.key_length", shape.head_dim, 256},
      {"max_position_embeddings / context_length", shape.max_position, 1 << 27},
  };
  for (const auto& field : fields) {
    if (absl::Status status = InRange(field.field, field.value, field.max); !status.ok()) {
      return status;
    }
  }
  if (shape.num_q_heads % shape.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_attention_heads / attention.head_count is ", shape.num_q_heads,
        ", not a multiple of num_key_value_heads / attention.head_count_kv ", shape.num_kv_heads));
  }
  if (shape.head_dim % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim / attention.key_length is ", shape.head_dim,
                     ", not a multiple of 16 (when it is absent: hidden_size / heads)"));
  }
  if (!(shape.rms_norm_eps > 0.0f && shape.rms_norm_eps < 1.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rms_norm_eps / attention.layer_norm_rms_epsilon is ", shape.rms_norm_eps,
                     ", not in (0, 1)"));
  }
  if (!(shape.rope.theta >= 1.0 && shape.rope.theta <= kMaxRopeTheta)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rope_theta / rope.freq_base is ", shape.rope.theta, "; allowed: 1 to ", kMaxRopeTheta));
  }
  if (!(shape.rope.factor > 0.0 && std::isfinite(shape.rope.factor))) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rope scaling's factor is ", shape.rope.factor, ", not positive"));
  }
  return absl::OkStatus();
}

}  // namespace tandem
