#pragma once

#include "gpu_worker/pipeline/pipeline_parts.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

// Runs pieces of a step on the idle streams and times them; takes about a fifth of a second. The
// contents of both pools' blocks and of the activations are lost.
MeasuredRates MeasurePipeline(const PipelineParts& parts);

}  // namespace tandem::gpu_worker
