#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model_shape/generation_defaults.h"

namespace tandem::router {

// Tokenizer and chat template of a model; the frontend knows what is in it.
struct ModelText;

// A model that workers serve. Immutable once shared.
struct ModelInfo {
  // Given by the fleet; equal for workers that can stand in for each other.
  int id = -1;
  std::vector<std::string> served_names;  // at least one
  std::string root;                       // file or folder name
  int32_t max_model_len = 0;
  int32_t vocab_size = 0;
  std::string system_fingerprint;
  std::string tokenizer_sha256;
  GenerationDefaults defaults;
  int64_t created_unix_s = 0;
  std::shared_ptr<const ModelText> text;  // null: the model has no tokenizer, prompts are ids
};

}  // namespace tandem::router
