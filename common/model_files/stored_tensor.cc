#include "common/model_files/stored_tensor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model_files/tensor_type.h"

namespace tandem::model_files {

std::optional<TensorType> TensorTypeOfGguf(uint32_t type) {
  switch (type) {  // numbers of the GGUF specification
    case 0:
      return TensorType::kF32;
    case 1:
      return TensorType::kF16;
    case 2:
      return TensorType::kQ4_0;
    case 3:
      return TensorType::kQ4_1;
    case 6:
      return TensorType::kQ5_0;
    case 7:
      return TensorType::kQ5_1;
    case 8:
      return TensorType::kQ8_0;
    case 12:
      return TensorType::kQ4_K;
    case 13:
      return TensorType::kQ5_K;
    case 14:
      return TensorType::kQ6_K;
    case 30:
      return TensorType::kBF16;
    default:
      return std::nullopt;
  }
}

absl::StatusOr<uint64_t> BytesOfTensor(TensorType type, const std::vector<int64_t>& dims) {
  if (dims.empty() || dims.size() > kMaxTensorDims) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", dims.size(), " dimensions; allowed: 1 to ", kMaxTensorDims));
  }
  const TensorBlock block = BlockOf(type);
  if (dims.back() % block.elements != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has rows of ", dims.back(), " elements, not a multiple of its block of ", block.elements));
  }
  constexpr uint64_t kMaxBytes = uint64_t{1} << 62;
  uint64_t bytes = static_cast<uint64_t>(block.bytes);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] < 1 || static_cast<uint64_t>(dims[i]) > kMaxTensorDim) {
      return absl::InvalidArgumentError(
          absl::StrCat("has a dimension of ", dims[i], "; allowed: 1 to ", kMaxTensorDim));
    }
    const uint64_t count =
        static_cast<uint64_t>(i + 1 == dims.size() ? dims[i] / block.elements : dims[i]);
    if (bytes > kMaxBytes / count) {
      return absl::InvalidArgumentError("is larger than 2^62 bytes");
    }
    bytes *= count;
  }
  return bytes;
}

std::string DimsText(const std::vector<int64_t>& dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

absl::Status CheckNoOverlap(const TensorTable& tensors, const std::string& file) {
  std::vector<std::pair<const std::byte*, const TensorTable::value_type*>> order;
  order.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    order.emplace_back(tensor.second.data, &tensor);
  }
  std::sort(order.begin(), order.end());
  for (size_t i = 1; i < order.size(); ++i) {
    const auto& before = *order[i - 1].second;
    if (before.second.data + before.second.bytes > order[i].first) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": tensors ", before.first, " and ",
                                                     order[i].second->first, " overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::model_files
