// tandem-cpu-attention-worker.
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>

#include "common/attention_kernels/paged_decode.h"
#include "common/base/config.h"
#include "common/base/log.h"
#include "cpu_attention_worker/server/worker.h"

namespace {

constexpr int kBadUsage = 2;
// A step that the device side does not feed any more is not waited for longer than this.
constexpr int64_t kDrainUs = 5'000'000;

void DeclareFlags(tandem::base::ConfigSpec& spec,
                  tandem::cpu_attention_worker::WorkerFlags& flags) {
  spec.String("socket", &flags.socket,
              "unix socket of the control server; the region comes over PATH.fd");
  spec.OptionalInt("cpu-attention-threads", &flags.threads, 1, 4096,
                   "attention threads (default: one per core of the node)");
  spec.String("numa-node", &flags.numa_node,
              "NUMA node of threads and memory: auto or the number of a node");
  spec.Choice("isa", &flags.isa, tandem::attention::IsaChoices(), "instruction set of the kernels");
  spec.Choice("cpu-kv-dtype", &flags.kv_dtype, {"auto", "float32", "bfloat16", "int8", "fp8_e4m3"},
              "element type that the GPU worker's pool must have; auto: any");
  spec.String("metrics-host", &flags.metrics_host, "address of /metrics, /health and /ready");
  spec.Int("cpu-attention-metrics-port", &flags.metrics_port, 0, 65535,
           "port of /metrics, /health and /ready; 0: a free one");
  spec.String("port-file", &flags.port_file, "file that gets the metrics port once it listens");
}

int ExitStatusOf(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ? kBadUsage : 1;
}

}  // namespace

int main(int argc, char** argv) {
  tandem::cpu_attention_worker::WorkerFlags flags;
  tandem::base::ConfigSpec spec("tandem-cpu-attention-worker",
                                "Decode attention over the CPU KV pool for one GPU worker.");
  DeclareFlags(spec, flags);
  if (const std::optional<int> exit_status = spec.ParseMain(argc, argv)) {
    return *exit_status;
  }
  // Blocked before any thread starts: they all inherit it, and only main takes the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  absl::StatusOr<std::unique_ptr<tandem::cpu_attention_worker::Worker>> worker =
      tandem::cpu_attention_worker::Worker::Start(flags);
  if (!worker.ok()) {
    std::fprintf(stderr, "tandem-cpu-attention-worker: %s\n",
                 std::string(worker.status().message()).c_str());
    return ExitStatusOf(worker.status());
  }
  int signal = 0;
  sigwait(&signals, &signal);
  tandem::base::LogInfo("stopping", {{"signal", signal}});
  // From here on a signal has its default action: a second one ends the process at once, by that
  // signal, whatever it waits for.
  sigprocmask(SIG_UNBLOCK, &signals, nullptr);
  (*worker)->Drain(kDrainUs);
  worker->reset();
  return 0;
}
