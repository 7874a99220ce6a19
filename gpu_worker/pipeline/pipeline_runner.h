#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/exchange/device_side.h"
#include "common/model_files/model_files.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

struct PipelineOptions {
  std::string device = "host";  // or cuda, or paced:PROFILE
  DType compute_dtype = DType::kBFloat16;
  DType cpu_kv_dtype = DType::kBFloat16;
  int32_t block_tokens = 16;
  int32_t num_gpu_blocks = 0;  // > 0: --num-gpu-blocks-override
  double gpu_memory_utilization = 0.9;
  uint64_t cpu_kv_bytes = 0;              // 0: no CPU tier
  int32_t num_cpu_attention_workers = 1;  // which share out the KV heads
  int32_t tensor_parallel_size = 1;       // GPUs that share out the model
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t max_model_len = 0;
  int32_t matmul_threads = 0;  // 0: all cores of the process's affinity
  // Transfers on a stream of their own also where the device has no copy engine: slower there, but
  // the order that devices with one run in.
  bool separate_transfer_stream = false;
  bool enforce_eager = false;                 // no step is captured in a graph
  std::string trace_steps;                    // file for the timelines of steps; empty: none
  std::function<void(double)> load_progress;  // as of model::LoadProgress
  int64_t cpu_wait_timeout_us = 5'000'000;    // per layer, before the CPU worker counts as hung
  // Of a step of several GPUs, its queueing included; then they count as lost.
  int64_t collective_timeout_us = 60'000'000;
};

// Loads the weights, lays out both pools (and the exchange's region when there is a CPU tier) and
// executes steps through stage programs on device streams.
class PipelineRunner : public StepRunner {
 public:
  // Errors name what is missing or too small. `files` must outlive the call only (weights are
  // packed or dequantised).
  static absl::StatusOr<std::unique_ptr<PipelineRunner>> Create(
      const PipelineOptions& options, const model_files::ModelFiles& files);
  // What a CpuAttentionLink each offers to the CPU attention workers; none without a CPU tier.
  virtual std::vector<exchange::DeviceSide*> exchanges() = 0;
  // Whether that worker may take steps; set by its link's events. A lost worker releases the
  // running step.
  virtual void SetCpuWorkerUp(size_t worker, bool up) = 0;
  // Lets the device reach the first `num_blocks` blocks of that worker's region (the worker touched
  // them first, so that they lie on its node); before any step uses them. One thread for each
  // worker.
  virtual absl::Status PrepareCpuBlocks(size_t worker, int32_t num_blocks) = 0;
  // For logs and keys: of a GPU its model, of several their number, too.
  virtual std::string device_name() const = 0;
  // Not OK: the device is lost, and only a new process can use it. Any thread.
  virtual absl::Status DeviceHealth() const = 0;

  // Where there is one worker.
  exchange::DeviceSide* exchange() {
    const std::vector<exchange::DeviceSide*> all = exchanges();
    return all.empty() ? nullptr : all[0];
  }
  void SetCpuWorkerUp(bool up) { SetCpuWorkerUp(0, up); }
};

// bfloat16 where the device has it; else float16 on a GPU and a paced one, float32 on the host.
DType DefaultComputeDType(const std::string& device);

}  // namespace tandem::gpu_worker
