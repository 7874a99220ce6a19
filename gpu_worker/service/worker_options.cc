#include "gpu_worker/service/worker_options.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/rpc/server.h"

namespace tandem::gpu_worker {
namespace {

constexpr uint64_t kMaxDefaultCpuKvBytes = uint64_t{4} << 30;

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

DType ParseDType(const std::string& name, DType automatic) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kInt8}) {
    if (name == DTypeName(dtype)) {
      return dtype;
    }
  }
  return name == "fp8_e4m3" ? DType::kFloat8E4M3 : automatic;
}

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
  return name == "all-cpu" ? OffloadPolicy::kAllCpu : OffloadPolicy::kAuto;
}

uint64_t CpuKvBytes(const WorkerFlags& flags, const MemoryInfo& memory) {
  if (flags.offload == "off" || flags.cpu_attention_sockets.empty()) {
    return 0;
  }
  return flags.cpu_kv_bytes.value_or(std::min(memory.available_bytes / 4, kMaxDefaultCpuKvBytes));
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

}  // namespace

absl::Status CheckFlags(const WorkerFlags& flags) {
  if (flags.model.empty()) {
    return Bad("--model is missing; allowed: a .gguf file or a Hugging Face folder");
  }
  if (const absl::Status status = rpc::CheckAddress(flags.listen); !status.ok()) {
    return Bad(base::StrCat("--listen: '", flags.listen, "': ", status.message()));
  }
  if (flags.cpu_attention_sockets.size() > 1) {
    return Bad("--cpu-attention-socket: this build drives one CPU attention worker; allowed: once");
  }
  if (flags.device == "cuda" || flags.device.starts_with("paced:")) {
    return absl::UnimplementedError(
        base::StrCat("--device ", flags.device, " is not in this build; allowed: auto, host"));
  }
  if (flags.offload == "neo") {
    return absl::UnimplementedError(
        "--offload neo is not in this build; allowed: auto, off, "
        "unified, asymmetric, all-cpu");
  }
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
  pipeline.device = "host";
  pipeline.compute_dtype = ParseDType(flags.dtype, auto_dtype);
  pipeline.cpu_kv_dtype =
      ParseDType(flags.cpu_kv_dtype,
                 pipeline.compute_dtype == DType::kFloat32 ? DType::kFloat32 : DType::kBFloat16);
  pipeline.block_tokens = std::stoi(flags.block_size);  // one of four numbers by its flag
  pipeline.num_gpu_blocks = static_cast<int32_t>(flags.num_gpu_blocks_override.value_or(0));
  pipeline.gpu_memory_utilization = flags.gpu_memory_utilization;
  pipeline.cpu_kv_bytes = CpuKvBytes(flags, memory);
  pipeline.max_num_seqs = static_cast<int32_t>(flags.max_num_seqs);
  pipeline.max_num_batched_tokens = static_cast<int32_t>(flags.max_num_batched_tokens);
  pipeline.max_model_len = max_model_len;

  EngineOptions& engine = options.engine;
  engine.offload = pipeline.cpu_kv_bytes == 0 ? OffloadPolicy::kOff : ParseOffload(flags.offload);
  engine.max_model_len = max_model_len;
  engine.max_num_seqs = pipeline.max_num_seqs;
  engine.max_num_batched_tokens = pipeline.max_num_batched_tokens;
  engine.eos_token_ids = model.generation_defaults().eos_token_ids;
  if (engine.eos_token_ids.empty() && model.tokenizer().eos_id) {
    engine.eos_token_ids = {*model.tokenizer().eos_id};
  }
  if (pipeline.cpu_kv_bytes > 0) {
    options.cpu_attention_socket = flags.cpu_attention_sockets[0];
  }
  return options;
}

}  // namespace tandem::gpu_worker
