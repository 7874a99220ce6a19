#pragma once

#include "gpu_worker/ops/linear.h"

namespace tandem::gpu_worker::ops::paced {

// Takes the memory and reads nothing.
absl::Status PackLinear(OpContext& context, LinearSource source, PackedLinear& packed);
void Linear(OpContext& context, const LinearArgs& args);
void GatherPackedRows(OpContext& context, const PackedLinear& weights,
                      std::span<const int32_t> ids);

}  // namespace tandem::gpu_worker::ops::paced
