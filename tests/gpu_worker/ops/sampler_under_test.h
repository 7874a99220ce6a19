#pragma once

#include <span>
#include <vector>

#include "gpu_worker/ops/sampling.h"
#include "gpu_worker/ops/token_choice.h"

// What sampling_cases.cc tests: each program that has it brings one implementation.
namespace tandem::gpu_worker {

// What each choice gives on the same logits.
std::vector<SampledToken> ChooseAll(const std::vector<float>& logits,
                                    std::span<const ops::TokenChoice> choices);

// How often distributions are drawn from: as the implementation's speed allows.
int NumDraws();

}  // namespace tandem::gpu_worker
