#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/bfloat16.h"
#include "common/model_files/model_parts.h"

namespace tandem::model_files {
namespace {

// Rows overlap, each beginning this many elements after the one before: a few megabytes stand for
// any model. A prime, so that no two rows of a tensor look alike.
constexpr int64_t kRowStride = 67;
// Standard deviation of fresh transformer weights; keeps activations of any depth finite.
constexpr double kDeviation = 0.02;
constexpr uint16_t kOne = 0x3f80;  // bfloat16

bool IsNorm(WeightRole role) {
  return role == WeightRole::kOutputNorm || role == WeightRole::kAttentionNorm ||
         role == WeightRole::kMlpNorm || role == WeightRole::kQNorm || role == WeightRole::kKNorm;
}

// splitmix64 (Steele et al., 2014).
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

}  // namespace

void AddDummyWeights(ModelParts* parts) {
  const ModelShape& shape = parts->shape;
  const std::vector<WeightRole> roles = RolesOf(shape);
  int64_t random_elements = 0;
  int64_t ones = 0;
  for (const WeightRole role : roles) {
    const MatrixSize size = SizeOfRole(role, shape);
    random_elements = std::max(random_elements, size.rows * kRowStride + size.cols);
    ones = std::max(ones, size.cols);
  }
  // Each tensor begins at another place, so that layers differ.
  const int64_t num_starts = int64_t{shape.num_layers} * static_cast<int64_t>(roles.size()) + 3;
  std::vector<uint16_t>& storage = parts->dummy_storage;
  storage.assign(static_cast<size_t>(ones + random_elements + num_starts), kOne);
  uint64_t state = 1;
  const double range = kDeviation * std::sqrt(12.0);
  for (size_t i = static_cast<size_t>(ones); i < storage.size(); ++i) {
    const double uniform = static_cast<double>(NextRandom(&state) >> 11) * 0x1p-53;
    storage[i] = base::FloatToBFloat16(static_cast<float>((uniform - 0.5) * range));
  }
  parts->weights = WeightMap(shape.num_layers);
  int64_t start = 0;
  for (const WeightRole role : roles) {
    const MatrixSize size = SizeOfRole(role, shape);
    for (int32_t layer = 0; layer < (IsPerLayer(role) ? shape.num_layers : 1); ++layer) {
      WeightView view;
      view.type = TensorType::kBF16;
      view.rows = size.rows;
      view.cols = size.cols;
      view.row_bytes = kRowStride * static_cast<int64_t>(sizeof(uint16_t));
      const bool is_output = role == WeightRole::kOutput && shape.tied_embeddings;
      const int64_t offset = IsNorm(role) ? 0 : ones + (is_output ? 0 : start++);
      view.data = reinterpret_cast<const std::byte*>(storage.data() + offset);
      parts->weights.Set(role, layer, view);
      parts->weight_bytes +=
          is_output ? 0 : static_cast<uint64_t>(size.rows * size.cols) * sizeof(uint16_t);
    }
  }
}

absl::Status CheckSlidingWindow(int64_t window, const ModelShape& shape, const OpenOptions& options,
                                const std::string& field) {
  const int64_t longest = options.max_model_len > 0
                              ? std::min<int64_t>(options.max_model_len, shape.max_position)
                              : shape.max_position;
  if (window >= longest) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      field, " is ", window, ", less than the context of ", longest,
      " tokens: sliding window attention is not supported; a max-model-len of at most ", window,
      " does without it"));
}

}  // namespace tandem::model_files
