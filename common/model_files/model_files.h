#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model_shape/generation_defaults.h"
#include "common/model_shape/model_shape.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace tandem::model_files {

// Storage type of a tensor on disk.
enum class TensorType { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4_K, kQ5_K, kQ6_K };

// The weights of a decoder, by role. Where a file fuses several (phi3), each role is a view of its
// rows.
enum class WeightRole {
  kTokenEmbedding,  // [vocab_size, hidden_size]
  kOutputNorm,      // [1, hidden_size]
  kOutput,          // [vocab_size, hidden_size]; the embedding when tied
  kAttentionNorm,   // from here on one per layer
  kQ,               // [num_q_heads * head_dim, hidden_size]
  kK,               // [num_kv_heads * head_dim, hidden_size]
  kV,
  kQBias,  // [1, num_q_heads * head_dim]
  kKBias,
  kVBias,
  kQNorm,  // [1, head_dim]
  kKNorm,
  kAttentionOutput,  // [hidden_size, num_q_heads * head_dim]
  kMlpNorm,
  kGate,  // [intermediate_size, hidden_size]
  kUp,
  kDown,  // [hidden_size, intermediate_size]
};

// Rows of a tensor inside the mapped file; valid as long as its ModelFiles. Row-major, `cols`
// elements a row.
struct WeightView {
  TensorType type = TensorType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_bytes = 0;
  const std::byte* data = nullptr;
  // > 0: rows are those of a llama GGUF's q or k, permuted for interleaved RoPE within each of this
  // many heads; ReadRows puts them right.
  int32_t permuted_heads = 0;
};

// Writes rows [first, first + count) of `view` to `out` [count, cols] as float32, dequantised and
// unpermuted.
void ReadRows(const WeightView& view, int64_t first, int64_t count, float* out);

// An opened model: everything validated, weights mapped and not copied. Immutable, thread-safe.
class ModelFiles {
 public:
  virtual ~ModelFiles() = default;
  virtual const ModelShape& shape() const = 0;
  virtual const tokenizer::TokenizerSpec& tokenizer() const = 0;
  virtual const GenerationDefaults& generation_defaults() const = 0;
  // File name without folder and without ".gguf", or folder name.
  virtual const std::string& name() const = 0;
  // nullopt only for optional roles the model lacks (biases, q/k norms). `layer` is ignored for the
  // first three roles.
  virtual std::optional<WeightView> Find(WeightRole role, int32_t layer) const = 0;
  // Bytes of weights on disk.
  virtual uint64_t weight_bytes() const = 0;
};

struct OpenOptions {
  bool dummy_weights = false;  // --load-format dummy: shapes alone; Find gives views of
                               // deterministic pseudo-random data
  int32_t max_model_len = 0;   // > 0: the caller runs no longer contexts; a sliding window that
                               // they cannot outgrow is then no reason to refuse
};

// Opens a .gguf file or a Hugging Face folder. Errors name file and field: NotFound,
// InvalidArgument (malformed, truncated, hostile or inconsistent), Unimplemented (architecture,
// rope type, tensor type ... that we do not run).
absl::StatusOr<std::unique_ptr<ModelFiles>> OpenModel(const std::string& path,
                                                      const OpenOptions& options = {});

}  // namespace tandem::model_files
