#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_files/model_files.h"
#include "common/model_files/stored_tensor.h"

namespace tandem::model_files {

// Which names a file gives its tensors.
enum class NamingScheme { kGguf, kHuggingFace };

// The views of a model's weights by role and layer. Value.
class WeightMap {
 public:
  explicit WeightMap(int32_t num_layers) : layers_(static_cast<size_t>(num_layers)) {}
  WeightMap() = default;

  void Set(WeightRole role, int32_t layer, const WeightView& view);
  // nullopt where nothing was set, and for layers that are not there.
  std::optional<WeightView> Find(WeightRole role, int32_t layer) const;

 private:
  static constexpr size_t kNumRoles = static_cast<size_t>(WeightRole::kDown) + 1;
  using Roles = std::array<std::optional<WeightView>, kNumRoles>;
  Roles model_{};
  std::vector<Roles> layers_;
};

inline bool IsPerLayer(WeightRole role) { return role > WeightRole::kOutput; }

// Rows and columns that a role has in a model of this shape.
struct MatrixSize {
  int64_t rows = 0;
  int64_t cols = 0;
};
MatrixSize SizeOfRole(WeightRole role, const ModelShape& shape);

// The roles that a model of this shape has; kOutput among them when tied too.
std::vector<WeightRole> RolesOf(const ModelShape& shape);

// Name of a role's tensor ("blk.3.attn_q.weight").
std::string TensorName(NamingScheme scheme, WeightRole role, int32_t layer);

struct WeightMapRequest {
  NamingScheme scheme = NamingScheme::kHuggingFace;
  bool permuted_qk = false;  // the q and k rows are those of a llama GGUF
  std::string file;          // for messages
};

// Looks up and checks every weight of `shape`: present, of the right shape, fused ones of phi3 cut
// into their rows. InvalidArgument names a missing or misshapen tensor; a tensor that is none of
// the model's is Unimplemented, because leaving it out would change the answers.
absl::StatusOr<WeightMap> BuildWeightMap(const WeightMapRequest& request, const ModelShape& shape,
                                         const TensorTable& tensors);

}  // namespace tandem::model_files
