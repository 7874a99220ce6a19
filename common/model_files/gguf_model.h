#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "common/model_files/model_parts.h"

namespace tandem::model_files {

// Reads a model from the whole contents of a GGUF file (not trusted; views point into `bytes`).
// `file` names it in errors.
absl::StatusOr<ModelParts> ReadGgufModel(std::span<const std::byte> bytes, const std::string& file,
                                         const OpenOptions& options);

}  // namespace tandem::model_files
