#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/step_capture.h"
#include "gpu_worker/pipeline/pipeline_runner.h"

// What each device with memory of its own will be asked for, known before anything is allocated.
namespace tandem::gpu_worker {

struct MemoryPlan {
  uint64_t weights_bytes = 0;
  uint64_t activations_bytes = 0;  // of both sub-batches, with rotary table, logits, sampler
  uint64_t staging_bytes = 0;      // of prompts whose KV will live on the CPU, and of moves
  uint64_t workspace_bytes = 0;    // of matrix products and decode attention
  uint64_t graphs_bytes = 0;       // of captured steps, with their tables
  uint64_t fixed_bytes() const {
    return weights_bytes + activations_bytes + staging_bytes + workspace_bytes + graphs_bytes;
  }
};

// What captured steps bring along. Pure.
ops::StepCaptureLimits GraphLimits(const PipelineOptions& options, int32_t max_positions);

// Pure.
MemoryPlan PlanMemory(const PipelineOptions& options, const ModelShape& whole,
                      int32_t max_positions);

// What is left for the device KV pool. Pure.
uint64_t PlannedPoolBytes(const MemoryPlan& plan, const device::MemoryInfo& memory,
                          double utilization);

// ResourceExhausted where nothing is left; says what to lower.
absl::Status CheckMemoryPlan(const MemoryPlan& plan, const device::MemoryInfo& memory,
                             double utilization);

void LogMemoryPlan(const MemoryPlan& plan, const device::MemoryInfo& memory, double utilization,
                   int32_t rank);

}  // namespace tandem::gpu_worker
