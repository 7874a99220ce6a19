#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/structured_output/grammar_spec.h"
#include "common/tokenizer/tokenizer.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

struct GrammarOptions {
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer;  // null: the model has none
  int32_t vocab_size = 0;
  std::vector<int32_t> eos_token_ids;
  size_t cache_bytes = 128u << 20;
  size_t max_waiting = 64;                // different grammars in the queue
  int64_t compile_limit_us = 10'000'000;  // then the request is refused
  int64_t mask_limit_us = 2'000'000;      // then the sequence ends with an error
};

// Prepares requests' grammars away from the engine's thread, keeps the prepared ones, and computes
// the masks of running sequences beside the steps. Thread-safe.
class GrammarService {
 public:
  using OnPrepared =
      std::function<void(absl::StatusOr<std::shared_ptr<TokenConstraint>> constraint)>;

  static std::unique_ptr<GrammarService> Create(GrammarOptions options);
  // Callers that still wait hear Unavailable. Constraints may outlive the service.
  virtual ~GrammarService() = default;

  // Calls `on_prepared` once, on another thread or at once where the grammar is known.
  // InvalidArgument: the grammar is at fault, or takes too long or too much; an ErrorDetail names
  // the request's field. Unimplemented: structured output is not available with this model or
  // build. ResourceExhausted: too many grammars wait.
  virtual void Prepare(const structured_output::GrammarSpec& spec, OnPrepared on_prepared) = 0;
};

}  // namespace tandem::gpu_worker
