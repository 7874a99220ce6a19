#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/model_files/stored_tensor.h"

namespace tandem::model_files {

// The tensors of a safetensors file whose whole contents are `bytes` (not trusted; the result
// points into them). Their data need not be aligned. Tensors of types other than F32, F16 and BF16
// are Unimplemented; anything malformed is InvalidArgument; errors name `file` and the tensor.
absl::StatusOr<TensorTable> ParseSafetensors(std::span<const std::byte> bytes,
                                             const std::string& file);

}  // namespace tandem::model_files
