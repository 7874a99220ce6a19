#pragma once

#include <cstdint>

#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker::ops {

// What is wanted of a row of logits.
struct TokenChoice {
  const SampleRequest* request = nullptr;  // a token to sample; null: `token` is given
  int32_t token = 0;                       // inside the vocabulary
  int32_t num_logprobs = -1;               // -1: none; n: of the token and the n best
};

}  // namespace tandem::gpu_worker::ops
