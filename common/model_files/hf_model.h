#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_files/model_parts.h"
#include "common/shm/region.h"

namespace tandem::model_files {

// Reads a Hugging Face folder. The views of the result point into `mappings`, to which its
// safetensors files are added. With dummy weights a config.json is enough.
absl::StatusOr<ModelParts> ReadHfModel(const std::string& folder, const OpenOptions& options,
                                       std::vector<shm::MappedFile>* mappings);

}  // namespace tandem::model_files
