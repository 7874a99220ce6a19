#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/exchange/device_side.h"
#include "common/model_files/model_files.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

struct PipelineOptions {
  std::string device =
      "host";  // host; cuda and paced come later and are refused clearly until then
  DType compute_dtype = DType::kBFloat16;
  DType cpu_kv_dtype = DType::kBFloat16;
  int32_t block_tokens = 16;
  int32_t num_gpu_blocks = 0;  // > 0: --num-gpu-blocks-override
  double gpu_memory_utilization = 0.9;
  uint64_t cpu_kv_bytes = 0;  // 0: no CPU tier
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_model_len = 0;
  int32_t matmul_threads = 0;  // 0: all cores of the process's affinity
  // Transfers on a stream of their own also where the device has no copy engine: slower there, but
  // the order that devices with one run in.
  bool separate_transfer_stream = false;
  int64_t cpu_wait_timeout_us = 5'000'000;  // per layer, before the CPU worker counts as hung
};

// Loads the weights, lays out both pools (and the exchange's region when there is a CPU tier) and
// executes steps through stage programs on device streams.
class PipelineRunner : public StepRunner {
 public:
  // Errors name what is missing or too small. `files` must outlive the call only (weights are
  // packed or dequantised).
  static absl::StatusOr<std::unique_ptr<PipelineRunner>> Create(
      const PipelineOptions& options, const model_files::ModelFiles& files);
  // The exchange that a CpuAttentionLink offers to the worker; null without a CPU tier.
  virtual exchange::DeviceSide* exchange() = 0;
  // Whether the CPU attention worker may take steps; set by the link's events. A lost worker
  // releases the running step.
  virtual void SetCpuWorkerUp(bool up) = 0;
};

// bfloat16 where this machine's device has it, else float32.
DType DefaultComputeDType(const std::string& device);

}  // namespace tandem::gpu_worker
