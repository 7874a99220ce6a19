#include "common/model_shape/model_shape.h"

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

namespace {

// Bounds that keep every product of two sizes inside 63 bits and refuse absurd files early.
constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxWidth = 1 << 20;
constexpr int32_t kMaxVocab = 1 << 22;
constexpr int32_t kMaxHeads = 1024;

absl::Status InRange(const char* field, int64_t value, int64_t max) {
  if (value < 1 || value > max) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; allowed: 1 to ", max));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateModelShape(const ModelShape& shape) {
  const struct {
    const char* field;
    int32_t value;
    int32_t max;
  } fields[] = {
      {"num_layers", shape.num_layers, kMaxLayers},
      {"hidden_size", shape.hidden_size, kMaxWidth},
      {"intermediate_size", shape.intermediate_size, kMaxWidth},
      {"num_q_heads", shape.num_q_heads, kMaxHeads},
      {"num_kv_heads", shape.num_kv_heads, kMaxHeads},
      {"vocab_size", shape.vocab_size, kMaxVocab},
      {"head_dim", shape.head_dim, 256},
      {"max_position", shape.max_position, 1 << 27},
  };
  for (const auto& field : fields) {
    if (absl::Status status = InRange(field.field, field.value, field.max); !status.ok()) {
      return status;
    }
  }
  if (shape.num_q_heads % shape.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat("num_q_heads ", shape.num_q_heads,
                                                   " is not a multiple of num_kv_heads ",
                                                   shape.num_kv_heads));
  }
  if (shape.head_dim % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_dim ", shape.head_dim, " is not a multiple of 16"));
  }
  if (!(shape.rms_norm_eps > 0.0f && shape.rms_norm_eps < 1.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rms_norm_eps ", shape.rms_norm_eps, " is not in (0, 1)"));
  }
  if (!(shape.rope.theta >= 1.0) || !(shape.rope.factor > 0.0)) {
    return absl::InvalidArgumentError("rope theta or factor out of range");
  }
  return absl::OkStatus();
}

}  // namespace tandem
