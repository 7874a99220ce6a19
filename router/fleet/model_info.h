#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tandem::router {

// Tokenizer and chat template of a model; the frontend knows what is in it.
struct ModelText;

// What a request that does not say otherwise gets; from the model's generation_config.json.
struct GenerationDefaults {
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::vector<int32_t> eos_token_ids;
};

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
