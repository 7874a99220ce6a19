#pragma once

#include <string>

#include "common/model_files/model_files.h"
#include "gpu_worker/service/worker_options.h"

namespace tandem::gpu_worker {

// Everything of this process that measured costs depend on, as one line: the model's shape and
// weights, types, block size, device, CPU, cores and the build.
std::string CostKey(const model_files::ModelFiles& model, const PipelineOptions& pipeline,
                    const std::string& device_name);

// Where measured costs are kept for `--cost-tables`: "auto": tandem/ in the user's cache folder,
// made if it is not there (empty where there is none); "off": empty; else that folder.
std::string CostFolder(const std::string& flag);

}  // namespace tandem::gpu_worker
