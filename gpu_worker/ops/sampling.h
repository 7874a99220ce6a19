#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "gpu_worker/pipeline/step_io.h"

// Choosing tokens from logits, as vLLM does it. Pure functions; every thread may call them.
namespace tandem::gpu_worker {

struct SampledToken {
  int32_t token = 0;
  std::optional<TokenLogprobs> logprobs;  // after the grammar's mask, before everything else
};

// `logits` [vocab] is scratch and is left modified. In order: allowed tokens (a grammar's: nothing
// else is ever chosen, and where it allows no token that is not forbidden the forbidden ones count
// as allowed); forbidden tokens and logit bias;
// repetition (prompt and output), frequency and presence (output) penalties; temperature; min_p,
// top_k (ties with the k-th stay), top_p; a draw keyed by (seed, output position). A temperature
// below 1e-5 takes the largest, the lowest id on ties. NaN counts as minus infinity; where nothing
// is left to choose the token is 0. Token ids outside the vocabulary are passed over.
SampledToken SampleRow(std::span<float> logits, const SampleRequest& request);

// Whether SampleRow would take the largest logit (the lowest id on ties) and nothing else is
// wanted.
bool IsPlainGreedy(const SampleRequest& request);

// Natural logarithm of the softmax of `logits` [vocab]; rank is 1 + the number of larger logits.
// `top` holds the min(num_top, vocab) best, lower ids first on ties; empty when num_top <= 0.
TokenLogprobs LogprobsOf(std::span<const float> logits, int32_t token, int32_t num_top);

}  // namespace tandem::gpu_worker
