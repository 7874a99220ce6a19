#include "gpu_worker/service/worker_options.h"

#include <algorithm>
#include <set>

#include "absl/strings/numbers.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/rpc/server.h"
#include "gpu_worker/cost_model/device_profile.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_group.h"
#include "gpu_worker/model/tensor_parallel.h"

namespace tandem::gpu_worker {
namespace {

constexpr uint64_t kMaxDefaultCpuKvBytes = uint64_t{4} << 30;  // beside a device on the host
constexpr std::string_view kPacedPrefix = "paced:";

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

OffloadPolicy ParseOffload(const std::string& name) {
  if (name == "off") {
    return OffloadPolicy::kOff;
  }
  if (name == "unified") {
    return OffloadPolicy::kUnified;
  }
  if (name == "asymmetric") {
    return OffloadPolicy::kAsymmetric;
  }
  if (name == "neo") {
    return OffloadPolicy::kNeo;
  }
  return name == "all-cpu" ? OffloadPolicy::kAllCpu : OffloadPolicy::kAuto;
}

uint64_t CpuKvBytes(const WorkerFlags& flags, const MemoryInfo& memory) {
  if (flags.offload == "off" || flags.cpu_attention_sockets.empty()) {
    return 0;
  }
  const uint64_t quarter = memory.available_bytes / 4;
  return flags.cpu_kv_bytes.value_or(
      DeviceOf(flags) == "host" ? std::min(quarter, kMaxDefaultCpuKvBytes) : quarter);
}

absl::StatusOr<int32_t> MaxModelLen(const WorkerFlags& flags, int32_t max_position) {
  if (!flags.max_model_len) {
    return max_position;
  }
  if (*flags.max_model_len > max_position) {
    return Bad(base::StrCat("--max-model-len: ", *flags.max_model_len,
                            " is more than the model was made for; allowed: 1 to ", max_position));
  }
  return static_cast<int32_t>(*flags.max_model_len);
}

absl::Status CheckDevice(const std::string& device) {
  if (device == "cuda") {
    const absl::Status available = device::CudaIsAvailable();
    return available.ok()
               ? available
               : Bad(base::StrCat("--device cuda: ", available.message(),
                                  "; allowed on this machine: auto, host, paced:PROFILE"));
  }
  if (device.starts_with(kPacedPrefix)) {
    const absl::Status status = LoadDeviceProfile(device.substr(kPacedPrefix.size())).status();
    if (!status.ok()) {
      return Bad(base::StrCat("--device ", device, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensorParallel(const WorkerFlags& flags) {
  if (flags.tensor_parallel_size == 1) {
    return absl::OkStatus();
  }
  const std::string device = DeviceOf(flags);
  absl::Status why = device::CudaIsAvailable();
  if (why.ok() && device == "cuda") {
    why = device::CudaGroup::IsAvailable(static_cast<int32_t>(flags.tensor_parallel_size));
  } else if (why.ok()) {
    why = absl::UnavailableError(base::StrCat("--device ", device, " is one device"));
  }
  return why.ok() ? why
                  : Bad(base::StrCat("--tensor-parallel-size: ", flags.tensor_parallel_size,
                                     " GPUs: ", why.message(), "; allowed here: 1"));
}

}  // namespace

std::string DeviceOf(const WorkerFlags& flags) {
  if (flags.device != "auto") {
    return flags.device;
  }
  return device::CudaIsAvailable().ok() ? "cuda" : "host";
}

absl::Status CheckFlags(const WorkerFlags& flags) {
  if (flags.model.empty()) {
    return Bad("--model is missing; allowed: a .gguf file or a Hugging Face folder");
  }
  if (const absl::Status status = rpc::CheckAddress(flags.listen); !status.ok()) {
    return Bad(base::StrCat("--listen: '", flags.listen, "': ", status.message()));
  }
  if (flags.cost_tables.empty()) {
    return Bad("--cost-tables is empty; allowed: auto, off, a folder");
  }
  const std::set<std::string> sockets(flags.cpu_attention_sockets.begin(),
                                      flags.cpu_attention_sockets.end());
  for (const std::string& socket : sockets) {
    if (const absl::Status status = rpc::CheckAddress("unix:" + socket); !status.ok()) {
      return Bad(base::StrCat("--cpu-attention-socket: '", socket, "': ", status.message()));
    }
  }
  if (sockets.size() < flags.cpu_attention_sockets.size()) {
    return Bad("--cpu-attention-socket: a socket is there twice; allowed: one for each worker");
  }
  TANDEM_RETURN_IF_ERROR(CheckDevice(flags.device));
  TANDEM_RETURN_IF_ERROR(CheckTensorParallel(flags));
  const bool forced = flags.offload != "auto" && flags.offload != "off";
  if (forced && (flags.cpu_kv_bytes == uint64_t{0} || flags.cpu_attention_sockets.empty())) {
    return Bad(base::StrCat("--offload ", flags.offload,
                            " needs a CPU KV pool: --cpu-kv-size above 0 and a "
                            "--cpu-attention-socket"));
  }
  return absl::OkStatus();
}

absl::StatusOr<WorkerOptions> ResolveOptions(const WorkerFlags& flags,
                                             const model_files::ModelFiles& model,
                                             const MemoryInfo& memory, DType auto_dtype) {
  WorkerOptions options;
  TANDEM_ASSIGN_OR_RETURN(const int32_t max_model_len,
                          MaxModelLen(flags, model.shape().max_position));
  if (flags.cpu_kv_bytes && *flags.cpu_kv_bytes > memory.total_bytes) {
    return Bad(base::StrCat("--cpu-kv-size: ", *flags.cpu_kv_bytes,
                            " bytes are more than this machine's memory; allowed: up to ",
                            memory.total_bytes));
  }
  PipelineOptions& pipeline = options.pipeline;
  pipeline.device = DeviceOf(flags);
  pipeline.compute_dtype = DTypeOfName(flags.dtype).value_or(auto_dtype);
  pipeline.cpu_kv_dtype =
      DTypeOfName(flags.cpu_kv_dtype).value_or(kv::DefaultPoolType(pipeline.compute_dtype));
  if (pipeline.device == "host" && pipeline.compute_dtype == DType::kFloat16) {
    base::LogInfo("--dtype float16 is computed in float32 on the host, which holds all of it");
    pipeline.compute_dtype = DType::kFloat32;
  }
  pipeline.tensor_parallel_size = static_cast<int32_t>(flags.tensor_parallel_size);
  TANDEM_RETURN_IF_ERROR(model::CheckTensorParallel(model.shape(), pipeline.tensor_parallel_size));
  pipeline.block_tokens = std::stoi(flags.block_size);  // one of four numbers by its flag
  pipeline.num_gpu_blocks = static_cast<int32_t>(flags.num_gpu_blocks_override.value_or(0));
  pipeline.gpu_memory_utilization = flags.gpu_memory_utilization;
  pipeline.cpu_kv_bytes = CpuKvBytes(flags, memory);
  pipeline.max_num_seqs = static_cast<int32_t>(flags.max_num_seqs);
  pipeline.max_num_batched_tokens = static_cast<int32_t>(flags.max_num_batched_tokens);
  pipeline.max_model_len = max_model_len;
  pipeline.enforce_eager = flags.enforce_eager;
  pipeline.trace_steps = flags.trace_steps;

  EngineOptions& engine = options.engine;
  engine.offload = ParseOffload(flags.offload);
  if (pipeline.cpu_kv_bytes == 0 && engine.offload != OffloadPolicy::kAuto) {
    engine.offload = OffloadPolicy::kOff;  // auto still paces prefill on the device
  }
  engine.max_model_len = max_model_len;
  engine.max_num_seqs = pipeline.max_num_seqs;
  engine.max_num_batched_tokens = pipeline.max_num_batched_tokens;
  engine.max_inter_token_latency_us = flags.max_inter_token_latency_ms * 1000;
  engine.measure_costs = flags.cost_tables != "off";
  engine.eos_token_ids = model.generation_defaults().eos_token_ids;
  if (engine.eos_token_ids.empty() && model.tokenizer().eos_id) {
    engine.eos_token_ids = {*model.tokenizer().eos_id};
  }
  if (pipeline.cpu_kv_bytes > 0) {
    options.cpu_attention_sockets = flags.cpu_attention_sockets;
    pipeline.num_cpu_attention_workers = static_cast<int32_t>(flags.cpu_attention_sockets.size());
  }
  return options;
}

}  // namespace tandem::gpu_worker
