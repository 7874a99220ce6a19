#include "gpu_worker/service/worker_flags.h"

namespace tandem::gpu_worker {
namespace {

constexpr int64_t kMaxCount = 1'000'000'000;

absl::Status StoreDevice(std::string_view text, std::string* device) {
  if (text != "auto" && text != "host" && text != "cuda" &&
      !(text.starts_with("paced:") && text.size() > 6)) {
    return absl::InvalidArgumentError("allowed: auto, host, cuda, paced:PROFILE");
  }
  *device = std::string(text);
  return absl::OkStatus();
}

}  // namespace

void DeclareEngineFlags(base::ConfigSpec& spec, WorkerFlags& flags) {
  spec.Strings("served-model-name", &flags.served_model_names,
               "name that requests may use for the model (default: its file or folder name)");
  spec.Custom(
      "device", "auto|host|cuda|paced:PROFILE",
      [&flags](std::string_view text) { return StoreDevice(text, &flags.device); },
      "device of the dense layers; auto: cuda when one is there, else host (default auto)");
  spec.Choice("dtype", &flags.dtype, {"auto", "float32", "bfloat16", "float16"},
              "compute type; auto: bfloat16 where the hardware has it, else float32");
  spec.Int("tensor-parallel-size", &flags.tensor_parallel_size, 1, 16,
           "GPUs of this host that share out the model; more than 1 needs --device cuda and NCCL");
  spec.OptionalInt("max-model-len", &flags.max_model_len, 1, kMaxCount,
                   "longest prompt and output together, in tokens (default: the model's)");
  spec.Int("max-num-seqs", &flags.max_num_seqs, 1, 65536, "most sequences in one step");
  spec.Int("max-num-batched-tokens", &flags.max_num_batched_tokens, 1, 1 << 20,
           "most token rows in one step");
  spec.Double("gpu-memory-utilization", &flags.gpu_memory_utilization, 0.01, 1.0,
              "share of the device's memory that may be used");
  spec.OptionalInt("num-gpu-blocks-override", &flags.num_gpu_blocks_override, 1, kMaxCount,
                   "blocks of the device KV pool, instead of what memory allows");
  spec.Bytes("cpu-kv-size", &flags.cpu_kv_bytes,
             "size of the CPU KV pool; 0 switches offloading off (default: 25% of the free "
             "memory, on host at most 4 GiB)");
  spec.Choice("cpu-kv-dtype", &flags.cpu_kv_dtype,
              {"auto", "float32", "bfloat16", "int8", "fp8_e4m3"},
              "element type of the CPU KV pool; auto: float32 for float32 compute, else bfloat16");
  spec.Choice("offload", &flags.offload, {"auto", "off", "unified", "asymmetric", "all-cpu", "neo"},
              "when decode attention runs on the CPU; all but auto and off are for tests and "
              "benchmarks");
  spec.Int("max-inter-token-latency", &flags.max_inter_token_latency_ms, 0, 3'600'000,
           "target in milliseconds: steps with running sequences take less prefill to stay below; "
           "0: none");
  spec.String("cost-tables", &flags.cost_tables,
              "the scheduler's costs, measured when the worker is idle after its start: auto (kept "
              "in the user's cache folder), off (a first guess, corrected while serving), or the "
              "folder to keep them in");
  spec.Choice("block-size", &flags.block_size, {"16", "32", "64", "128"},
              "tokens of a device KV block");
  spec.Choice("load-format", &flags.load_format, {"auto", "dummy"},
              "dummy: random weights from the model's shapes alone");
  spec.Bool("enforce-eager", &flags.enforce_eager,
            "on a GPU launch every step kernel by kernel, without CUDA graphs");
  spec.Int("seed", &flags.seed, 0, INT64_MAX, "seed of whatever the server draws itself");
  spec.String("trace-steps", &flags.trace_steps,
              "file for the timeline of each step (device, link, CPU attention), as a Chrome or "
              "Perfetto trace");
  spec.Int("worker-metrics-port", &flags.metrics_port, 0, 65535,
           "port of the GPU worker's /metrics, /health and /ready; 0: a free one");
}

const std::vector<std::string>& EngineFlagNames() {
  static const auto* names = new std::vector<std::string>{"served-model-name",
                                                          "device",
                                                          "dtype",
                                                          "tensor-parallel-size",
                                                          "max-model-len",
                                                          "max-num-seqs",
                                                          "max-num-batched-tokens",
                                                          "gpu-memory-utilization",
                                                          "num-gpu-blocks-override",
                                                          "cpu-kv-size",
                                                          "cpu-kv-dtype",
                                                          "offload",
                                                          "max-inter-token-latency",
                                                          "cost-tables",
                                                          "block-size",
                                                          "load-format",
                                                          "enforce-eager",
                                                          "seed",
                                                          "trace-steps",
                                                          "worker-metrics-port"};
  return *names;
}

void DeclareWorkerFlags(base::ConfigSpec& spec, WorkerFlags& flags) {
  spec.String("model", &flags.model, "a .gguf file or a Hugging Face folder");
  spec.String("listen", &flags.listen, "gRPC address: host:port or unix:PATH");
  spec.Strings("cpu-attention-socket", &flags.cpu_attention_sockets,
               "socket of a CPU attention worker on this host; several share out the KV heads");
  DeclareEngineFlags(spec, flags);
  spec.String("metrics-host", &flags.metrics_host,
              "address that the metrics port binds (default: the host of --listen, 127.0.0.1 "
              "beside a unix socket)");
  spec.String("port-file", &flags.port_file,
              "file that gets one line, METRICS_PORT GRPC_PORT, once requests are served");
}

}  // namespace tandem::gpu_worker
