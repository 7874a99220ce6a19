#pragma once

#include "gpu_worker/ops/rows.h"

namespace tandem::gpu_worker::ops::cuda {

void Embed(OpContext& context, const EmbedArgs& args);
void RmsNorm(OpContext& context, const RmsNormArgs& args);
void Rope(OpContext& context, const RopeArgs& args);
void SiluMul(OpContext& context, const SiluMulArgs& args);

}  // namespace tandem::gpu_worker::ops::cuda
