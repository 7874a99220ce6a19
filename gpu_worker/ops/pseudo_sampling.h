#pragma once

#include <cstdint>

#include "gpu_worker/ops/sampling.h"

// Tokens of a device that computes no logits: functions of seed and position alone, meaningless
// otherwise. Pure.
namespace tandem::gpu_worker {

// A token of the vocabulary that is not forbidden (0 when all are). `vocab_size` is positive.
SampledToken PseudoSample(const SampleRequest& request, int32_t vocab_size);

// As from logits that are all equal.
TokenLogprobs PseudoLogprobs(int32_t token, int32_t num_top, int32_t vocab_size);

}  // namespace tandem::gpu_worker
