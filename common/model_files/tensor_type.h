#pragma once

#include <cstdint>
#include <optional>

#include "common/model_files/model_files.h"

namespace tandem::model_files {

// How a storage type packs elements: `bytes` for each run of `elements` along a row.
struct TensorBlock {
  int32_t elements = 1;
  int32_t bytes = 0;
};

constexpr TensorBlock BlockOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return {1, 4};
    case TensorType::kF16:
    case TensorType::kBF16:
      return {1, 2};
    case TensorType::kQ8_0:
      return {32, 2 + 32};
    case TensorType::kQ4_0:
      return {32, 2 + 16};
    case TensorType::kQ4_1:
      return {32, 4 + 16};
    case TensorType::kQ5_0:
      return {32, 2 + 4 + 16};
    case TensorType::kQ5_1:
      return {32, 4 + 4 + 16};
    case TensorType::kQ4_K:
      return {256, 4 + 12 + 128};
    case TensorType::kQ5_K:
      return {256, 4 + 12 + 32 + 128};
    case TensorType::kQ6_K:
      return {256, 128 + 64 + 16 + 2};
  }
  return {};
}

// The type with this number in a GGUF file, if we read it.
std::optional<TensorType> TensorTypeOfGguf(uint32_t type);

}  // namespace tandem::model_files
