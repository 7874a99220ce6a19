#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/pipeline/stage_program.h"
#include "gpu_worker/pipeline/step_io.h"
#include "gpu_worker/pipeline/step_trace.h"

// What a step's stages took, from stamps on the device's streams. Pure.
namespace tandem::gpu_worker {

// Microseconds of base::SystemClock. Stages of one stream follow each other without a gap but where
// they wait for another stream's.
struct StageTimes {
  double begin_us = 0;  // after what it waited for
  double split_us = 0;  // kAttend: between prefills and decodes
  double end_us = 0;
};

// Shares the times out among the cost model's terms; total_us is not set. `on_one_stream`: all
// resources run on the compute stream, so that waiting for the CPU is the time of the joins; with
// streams of their own it is how long the compute stream stood idle for them.
StepTimings SumStageTimes(const std::vector<Stage>& stages, const std::vector<StageTimes>& times,
                          bool on_one_stream);

// The same as a timeline, stages without any time left out.
std::vector<TraceSpan> SpansOf(const std::vector<Stage>& stages,
                               const std::vector<StageTimes>& times);

}  // namespace tandem::gpu_worker
