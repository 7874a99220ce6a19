#pragma once

#include "gpu_worker/ops/rows.h"

namespace tandem::gpu_worker::ops::paced {

void Embed(OpContext& context, const EmbedArgs& args);
void RmsNorm(OpContext& context, const RmsNormArgs& args);
void Rope(OpContext& context, const RopeArgs& args);
void SiluMul(OpContext& context, const SiluMulArgs& args);
// Choosing a token from each of `rows` rows of logits.
void Sample(OpContext& context, int64_t rows, int64_t vocab_size);

}  // namespace tandem::gpu_worker::ops::paced
