#pragma once

#include "gpu_worker/ops/linear.h"

namespace tandem::gpu_worker::ops::host {

absl::Status PackLinear(OpContext& context, const LinearSource& source, PackedLinear& packed);
absl::Status ConvertTable(OpContext& context, const ConvertTableArgs& args);
absl::Status Linear(OpContext& context, const LinearArgs& args);
absl::Status GatherPackedRows(OpContext& context, const PackedLinear& weights,
                              std::span<const int32_t> ids, float* out);

}  // namespace tandem::gpu_worker::ops::host
