#pragma once

#include <cstdint>
#include <vector>

#include "common/model_files/model_files.h"
#include "common/model_files/weight_map.h"

namespace tandem::model_files {

// What a reader makes of a model's files. The views in `weights` point into the files' bytes or
// into `dummy_storage`.
struct ModelParts {
  ModelShape shape;
  tokenizer::TokenizerSpec tokenizer;
  GenerationDefaults defaults;
  WeightMap weights;
  uint64_t weight_bytes = 0;
  std::vector<uint16_t> dummy_storage;
};

// Gives `parts` random weights for its shape.
void AddDummyWeights(ModelParts* parts);

// Refuses a window that a context of this length would outgrow. `field` names it in the message.
absl::Status CheckSlidingWindow(int64_t window, const ModelShape& shape, const OpenOptions& options,
                                const std::string& field);

}  // namespace tandem::model_files
