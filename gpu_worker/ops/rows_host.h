#pragma once

#include "gpu_worker/ops/rows.h"

namespace tandem::gpu_worker::ops::host {

absl::Status Embed(OpContext& context, const EmbedArgs& args);
absl::Status RmsNorm(OpContext& context, const RmsNormArgs& args);
absl::Status Rope(OpContext& context, const RopeArgs& args);
absl::Status SiluMul(OpContext& context, const SiluMulArgs& args);
void PackRows(const OpContext& context, const PackRowsArgs& args);

}  // namespace tandem::gpu_worker::ops::host
