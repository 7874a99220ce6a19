#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu_worker/engine/engine.h"
#include "gpu_worker/scheduler/scheduler_state.h"

namespace tandem::gpu_worker {

// One request inside the engine, from Submit to its last update.
struct Sequence {
  GenerationRequest request;    // prompt_tokens and resumed_tokens have moved to `tokens`
  std::vector<int32_t> tokens;  // prompt, then output
  int32_t prompt_size = 0;
  int32_t max_output = 0;
  std::vector<int32_t> stop_tokens;  // end tokens included unless they are ignored
  std::vector<int32_t> end_tokens;   // with a constraint: they end the output wherever they come
  SequenceView view;
  int64_t arrival_us = 0;
  std::vector<TokenLogprobs> prompt_logprobs;  // collected chunk by chunk
  bool prompt_is_reported = false;             // counted, and its logprobs sent
  bool in_step = false;
  bool is_cancelled = false;

  uint64_t id() const { return view.id; }
  int32_t output_size() const { return static_cast<int32_t>(tokens.size()) - prompt_size; }
  std::span<const int32_t> prompt() const {
    return std::span(tokens).first(static_cast<size_t>(prompt_size));
  }
  std::span<const int32_t> output() const {
    return std::span(tokens).subspan(static_cast<size_t>(prompt_size));
  }
  bool wants_prompt_logprobs() const {
    return request.num_prompt_logprobs >= 0 && !prompt_is_reported;
  }
  bool may_stop() const { return output_size() >= request.min_tokens; }
};

// Why generation ends after the newest token, kNone when it goes on. Stop tokens win over length.
FinishReason FinishAfterNewestToken(const Sequence& sequence);

// The counts that every update carries.
GenerationUpdate MakeUpdate(const Sequence& sequence);

// Loses its KV: back to the state in which it waits for admission.
void ForgetCache(Sequence* sequence);

}  // namespace tandem::gpu_worker
