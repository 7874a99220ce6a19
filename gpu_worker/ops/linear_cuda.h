#pragma once

#include "gpu_worker/ops/linear.h"

namespace tandem::gpu_worker::ops::cuda {

// Weights in their own order, [out_features, in_features]. Both read on the calling thread's team
// into pinned memory while the part before is on its way, and return when all is queued.
absl::Status PackLinear(OpContext& context, const LinearSource& source, PackedLinear& packed);
void ConvertTable(OpContext& context, const ConvertTableArgs& args);

void Linear(OpContext& context, const LinearArgs& args);
void GatherPackedRows(OpContext& context, const PackedLinear& weights, std::span<const int32_t> ids,
                      float* out);

}  // namespace tandem::gpu_worker::ops::cuda
