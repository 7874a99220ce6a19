#pragma once

#include "absl/status/statusor.h"
#include "common/model_files/model_files.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/pipeline/pipeline_runner.h"
#include "gpu_worker/service/memory_info.h"
#include "gpu_worker/service/worker_flags.h"

namespace tandem::gpu_worker {

struct WorkerOptions {
  PipelineOptions pipeline;
  EngineOptions engine;
  std::vector<std::string> cpu_attention_sockets;  // empty: no CPU tier
};

// What can be refused before the model is opened: InvalidArgument names flag and what is allowed,
// Unimplemented what this build does not do.
absl::Status CheckFlags(const WorkerFlags& flags);

// What --device means here: host, cuda or paced:PROFILE.
std::string DeviceOf(const WorkerFlags& flags);

// Flags and defaults for this model and machine. Errors as above; `auto_dtype` is what --dtype
// auto means here.
absl::StatusOr<WorkerOptions> ResolveOptions(const WorkerFlags& flags,
                                             const model_files::ModelFiles& model,
                                             const MemoryInfo& memory, DType auto_dtype);

}  // namespace tandem::gpu_worker
