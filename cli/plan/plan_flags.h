#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/plan/workload.h"
#include "common/base/config.h"
#include "common/model_shape/model_shape.h"
#include "gpu_worker/cost_model/device_profile.h"
#include "gpu_worker/scheduler/offload_policy.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace tandem::cli {

// The flags of `tandem plan` as given.
struct PlanFlags {
  std::string model;
  std::string gpu;
  int64_t tensor_parallel = 1;
  std::string dtype = "auto";
  std::string cpu_bandwidths;  // lists are texts with commas
  std::optional<int64_t> gpu_kv_tokens;
  double gpu_memory_utilization = 0.9;
  std::optional<uint64_t> cpu_kv_bytes;
  std::optional<int64_t> cpu_kv_tokens;
  std::string cpu_kv_dtype = "auto";
  std::string trace;
  std::string prompt_lens;
  std::string output_lens;
  std::optional<int64_t> requests;
  double length_spread = 0;
  std::string rates;
  bool all_at_once = false;
  int64_t concurrency = 0;
  double measure_from_s = 0;
  double measure_for_s = 0;
  std::string offload = "off,auto";
  std::string without;
  int64_t max_inter_token_latency_ms = 0;
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  int64_t block_size = 16;
  std::optional<int64_t> max_model_len;
  std::string launch = "graph";
  double step_overhead_us = 300;
  double cpu_slowdown = 1;
  double cpu_slowdown_from_s = 0;
  std::optional<double> max_per_token_latency_s;
  bool find_rate = false;
  bool deploy = false;
  int64_t seed = 0;
  int64_t jobs = 0;
  bool table = false;
  std::string html;
};

void DeclarePlanFlags(base::ConfigSpec* spec, PlanFlags* flags);

// The flags, checked and resolved.
struct PlanSettings {
  std::string model_name;
  ModelShape shape;
  gpu_worker::DeviceProfile profile;
  int32_t tensor_parallel = 1;
  DType dtype = DType::kFloat16;
  DType cpu_kv_dtype = DType::kBFloat16;
  int64_t gpu_kv_tokens = 0;
  int64_t cpu_kv_tokens = 0;
  int32_t max_model_len = 0;
  // 0 in a list: as the profile's host; at random times, all at once or by the trace.
  std::vector<double> cpu_bandwidths;  // GB/s
  std::vector<int64_t> prompt_lens;    // one entry, 0, with a trace
  std::vector<int64_t> output_lens;
  std::vector<double> rates;
  std::vector<std::string> offload;
  gpu_worker::SchedulerSwitches switches;
  double max_per_token_latency_s = 0;  // 0: none
  PlanFlags flags;
};

// InvalidArgument names the flag, or the field of a profile, and what is allowed.
absl::StatusOr<PlanSettings> ResolvePlanFlags(const PlanFlags& flags);

absl::StatusOr<gpu_worker::OffloadPolicy> OffloadPolicyOf(const std::string& name);

}  // namespace tandem::cli
