#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tandem {

// Data types of weights, activations and KV caches.
enum class DType : uint32_t {
  kFloat32 = 0,
  kBFloat16 = 1,
  kFloat16 = 2,
  kInt8 = 3,
  kFloat8E4M3 = 4
};

// Bytes of one element.
constexpr int DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 4;
    case DType::kBFloat16:
    case DType::kFloat16:
      return 2;
    case DType::kInt8:
    case DType::kFloat8E4M3:
      return 1;
  }
  return 0;
}

// "float32", "bfloat16", ... as on the command line.
const char* DTypeName(DType dtype);
// The type with that name, or nothing.
std::optional<DType> DTypeOfName(std::string_view name);

enum class ModelFamily { kLlama, kMistral, kQwen2, kQwen3, kPhi3 };

// Rotary position embedding, two-halves order (dimension d pairs with d + head_dim / 2).
struct RopeShape {
  enum class Scaling { kNone, kLinear, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;          // llama3
  double high_freq_factor = 4.0;         // llama3
  int32_t original_max_position = 8192;  // llama3
};

// Everything about a decoder-only transformer that is not a weight. Plain value.
struct ModelShape {
  ModelFamily family = ModelFamily::kLlama;
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t intermediate_size = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_position = 0;  // longest context the model was made for
  float rms_norm_eps = 1e-5f;
  RopeShape rope;
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim on q and k before RoPE

  int32_t group_size() const { return num_q_heads / num_kv_heads; }
  int64_t q_size() const { return int64_t{num_q_heads} * head_dim; }
  int64_t kv_size() const { return int64_t{num_kv_heads} * head_dim; }
};

// InvalidArgument with the offending field for shapes that nothing here can run: non-positive
// sizes, head counts that do not divide, head_dim not a multiple of 16 or over 256.
absl::Status ValidateModelShape(const ModelShape& shape);

}  // namespace tandem
