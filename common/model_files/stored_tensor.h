#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/model_files/model_files.h"

namespace tandem::model_files {

// A tensor as a file's directory describes it, checked against the file's size.
struct StoredTensor {
  TensorType type = TensorType::kF32;
  std::vector<int64_t> dims;  // outermost first, each positive; 1 to 4 of them
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
};

using TensorTable = absl::flat_hash_map<std::string, StoredTensor>;

// Most dimensions, and most elements along one of them: products of a few stay inside 63 bits.
inline constexpr size_t kMaxTensorDims = 4;
inline constexpr uint64_t kMaxTensorDim = uint64_t{1} << 40;

// Bytes of a tensor of these dimensions (outermost first), or why it has none: a dimension that is
// 0 or too large, a row that is no whole number of blocks, a size over 2^62.
absl::StatusOr<uint64_t> BytesOfTensor(TensorType type, const std::vector<int64_t>& dims);

// "[576, 49152]".
std::string DimsText(const std::vector<int64_t>& dims);

// Error when two tensors share bytes. `file` names the file in the message.
absl::Status CheckNoOverlap(const TensorTable& tensors, const std::string& file);

}  // namespace tandem::model_files
