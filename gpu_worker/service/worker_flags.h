#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/config.h"

namespace tandem::gpu_worker {

// What tandem-gpu-worker is started with, as texts and numbers in range; `tandem serve` takes the
// same flags and hands them on.
struct WorkerFlags {
  std::string model;
  std::string listen = "127.0.0.1:9400";
  std::vector<std::string> cpu_attention_sockets;
  std::string device = "auto";
  std::string dtype = "auto";
  int64_t tensor_parallel_size = 1;
  std::optional<int64_t> max_model_len;
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  double gpu_memory_utilization = 0.9;
  std::optional<int64_t> num_gpu_blocks_override;
  std::optional<uint64_t> cpu_kv_bytes;
  std::string cpu_kv_dtype = "auto";
  std::string offload = "auto";
  int64_t max_inter_token_latency_ms = 0;
  std::string cost_tables = "auto";
  std::string block_size = "16";
  std::string load_format = "auto";
  bool enforce_eager = false;
  int64_t seed = 0;
  std::string trace_steps;
  std::vector<std::string> served_model_names;
  int64_t metrics_port = 9311;
  std::string metrics_host;
  std::string port_file;
};

// The flags that `tandem serve` hands on: everything about model, pools and scheduling.
void DeclareEngineFlags(base::ConfigSpec& spec, WorkerFlags& flags);
// Their names.
const std::vector<std::string>& EngineFlagNames();
// All flags of tandem-gpu-worker.
void DeclareWorkerFlags(base::ConfigSpec& spec, WorkerFlags& flags);

}  // namespace tandem::gpu_worker
