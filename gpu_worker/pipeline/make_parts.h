#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model_files/model_files.h"
#include "gpu_worker/device/cuda/cuda_group.h"
#include "gpu_worker/pipeline/pipeline_parts.h"
#include "gpu_worker/pipeline/pipeline_runner.h"
#include "gpu_worker/pipeline/rank_team.h"

namespace tandem::gpu_worker {

// The devices of a pipeline, ready for steps. The group ends before its devices do.
struct PipelineRanks {
  std::vector<PipelineParts> parts;          // by rank
  std::unique_ptr<device::CudaGroup> group;  // of several devices, else null
};

// Opens the devices, loads the weights and lays out the pools; see PipelineRunner::Create.
absl::StatusOr<PipelineRanks> MakePipelineRanks(const PipelineOptions& options,
                                                const model_files::ModelFiles& files,
                                                RankTeam& team);

// Makes the first `bytes` bytes of a CPU attention worker's region reachable for all devices, as
// far as they are not yet. One thread for each worker.
absl::Status RegisterRegion(PipelineRanks& ranks, size_t shard, uint64_t bytes);

}  // namespace tandem::gpu_worker
