#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tandem {

// What a request that does not say otherwise gets; from the model's generation_config.json or GGUF
// metadata.
struct GenerationDefaults {
  std::optional<float> temperature;
  std::optional<int32_t> top_k;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::vector<int32_t> eos_token_ids;
};

}  // namespace tandem
