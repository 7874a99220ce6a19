#include "cli/serve/serve_command.h"

#include <unistd.h>

#include <climits>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/serve/endpoint_monitor.h"
#include "cli/serve/run_dir.h"
#include "cli/serve/serve_flags.h"
#include "cli/serve/supervisor.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::cli {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr int kBadUsage = 2;
// Beyond the time that a child gives its requests before it cuts them off itself.
constexpr int64_t kStopMarginUs = 10'000'000;

absl::StatusOr<std::string> OwnFolder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0 || length >= static_cast<ssize_t>(sizeof(path))) {
    return absl::InternalError("cannot tell where this program lies; give --program-dir");
  }
  const std::string own(path, static_cast<size_t>(length));
  return own.substr(0, own.rfind('/'));
}

// An address for URLs and probes: a wildcard is reached through loopback.
std::string DialHost(const std::string& host) {
  if (host == "0.0.0.0" || host.empty()) {
    return kLoopback;
  }
  if (host == "::" || host == "[::]") {
    return "[::1]";
  }
  return host.find(':') != std::string::npos && host[0] != '[' ? base::StrCat("[", host, "]")
                                                               : host;
}

// The three children of one `tandem serve`, as the supervisor sees them.
class Stack {
 public:
  Stack(const base::ConfigSpec& spec, const ServeFlags& flags, std::string model, RunDir* dir)
      : spec_(spec),
        flags_(flags),
        model_(std::move(model)),
        dir_(dir),
        environment_(CurrentEnvironment()),
        cpu_({.port_file = dir->File("cpu-attention-worker.ports")}),
        gpu_({.port_file = dir->File("gpu-worker.ports"), .num_ports = 2}),
        router_({.port_file = dir->File("router.ports"),
                 .num_ports = 2,
                 .metrics_index = kRouterMetrics,
                 .wait_until_ready = true}) {
    for (const std::string& name : spec.Variables()) {
      environment_.erase(name);  // children get what it says as flags
    }
  }

  // In starting order.
  std::vector<SupervisedChild> Children() {
    return {Child("cpu-attention-worker", &cpu_, [this] { return CpuCommand(); }),
            Child("gpu-worker", &gpu_, [this] { return GpuCommand(); }),
            Child("router", &router_, [this] { return RouterCommand(); })};
  }

  std::string http_url() const {
    return base::StrCat("http://", DialHost(flags_.host), ":",
                        router_.port(kRouterHttp, flags_.port));
  }

  std::string EndpointsJson() const {
    const auto metrics = [](const EndpointMonitor& monitor, size_t index = 0) {
      return base::StrCat("http://", kLoopback, ":", monitor.port(index, 0), "/metrics");
    };
    const nlohmann::ordered_json json = {{"http", http_url()},
                                         {"metrics",
                                          {{"router", metrics(router_, kRouterMetrics)},
                                           {"gpu_worker", metrics(gpu_)},
                                           {"cpu_attention_worker", metrics(cpu_)}}}};
    return json.dump() + "\n";
  }

 private:
  SupervisedChild Child(const std::string& name, EndpointMonitor* monitor,
                        std::function<std::vector<std::string>()> command) {
    return {.name = name,
            .spawn =
                [this, name, command = std::move(command)] {
                  SpawnOptions options{.command = command(),
                                       .environment = environment_,
                                       .log_path = dir_->File(name + ".log")};
                  if (name == "router" && !flags_.api_key.empty()) {
                    // Not as a flag: command lines are public.
                    options.environment["TANDEM_API_KEY"] = flags_.api_key;
                  }
                  return options;
                },
            .pid_path = dir_->File(name + ".pid"),
            .monitor = monitor};
  }

  std::vector<std::string> Program(const std::string& name) const {
    return {base::StrCat(flags_.program_dir, "/tandem-", name),
            "--port-file",
            dir_->File(name + ".ports"),
            "--log-level",
            spec_.log_level(),
            "--log-format",
            spec_.log_format()};
  }

  void Forward(const std::string& name, std::vector<std::string>* command) const {
    for (const std::string& value : spec_.ValuesOf(name)) {
      command->push_back(base::StrCat("--", name, "=", value));
    }
  }

  static void ForwardPort(const std::string& name, int port, std::vector<std::string>* command) {
    command->push_back(base::StrCat("--", name, "=", port));
  }

  std::vector<std::string> CpuCommand() const {
    std::vector<std::string> command = Program("cpu-attention-worker");
    command.insert(command.end(), {"--socket", dir_->Socket("cpu-attention.sock")});
    Forward("cpu-attention-threads", &command);
    Forward("numa-node", &command);
    ForwardPort("cpu-attention-metrics-port", cpu_.port(0, flags_.cpu_attention_metrics_port),
                &command);
    return command;
  }

  std::vector<std::string> GpuCommand() const {
    std::vector<std::string> command = Program("gpu-worker");
    command.insert(command.end(), {"--model", model_, "--listen",
                                   base::StrCat("unix:", dir_->Socket("gpu-worker.sock")),
                                   "--cpu-attention-socket", dir_->Socket("cpu-attention.sock")});
    for (const std::string& name : gpu_worker::EngineFlagNames()) {
      if (name != "worker-metrics-port") {
        Forward(name, &command);
      }
    }
    ForwardPort("worker-metrics-port", gpu_.port(0, flags_.worker.metrics_port), &command);
    ForwardDrainTimeout(&command);
    return command;
  }

  std::vector<std::string> RouterCommand() const {
    std::vector<std::string> command = Program("router");
    command.insert(
        command.end(),
        {"--listen", base::StrCat(flags_.host, ":", router_.port(kRouterHttp, flags_.port)),
         "--worker", base::StrCat("unix:", dir_->Socket("gpu-worker.sock"))});
    ForwardPort("router-metrics-port", router_.port(kRouterMetrics, flags_.router_metrics_port),
                &command);
    ForwardDrainTimeout(&command);
    return command;
  }

  void ForwardDrainTimeout(std::vector<std::string>* command) const {
    command->push_back(base::StrCat("--drain-timeout=", flags_.drain_timeout_s));
  }

  // In the port files of the router; the GPU worker has its metrics port first, too.
  static constexpr size_t kRouterHttp = 1;
  static constexpr size_t kRouterMetrics = 0;

  const base::ConfigSpec& spec_;
  const ServeFlags& flags_;
  std::string model_;
  RunDir* dir_;
  std::map<std::string, std::string> environment_;
  EndpointMonitor cpu_;
  EndpointMonitor gpu_;
  EndpointMonitor router_;
};

absl::StatusOr<std::string> PrepareModel(ServeFlags& flags) {
  if (flags.model.empty()) {
    return absl::InvalidArgumentError(
        "MODEL is missing; allowed: a .gguf file, a Hugging Face folder, demo");
  }
  if (flags.program_dir.empty()) {
    TANDEM_ASSIGN_OR_RETURN(flags.program_dir, OwnFolder());
  }
  return FindModel(flags.model[0], flags.program_dir);
}

int Complain(const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "tandem serve: %s\n", std::string(status.message()).c_str());
  return exit_status;
}

}  // namespace

int RunServe(const std::vector<std::string>& args) {
  ServeFlags flags;
  base::ConfigSpec spec("tandem serve",
                        "Starts and supervises router, GPU worker and CPU attention worker on "
                        "this host.");
  DeclareServeFlags(spec, flags);
  if (const std::optional<int> exit_status = spec.ParseMain(args)) {
    return *exit_status;
  }
  const absl::StatusOr<std::string> model = PrepareModel(flags);
  if (!model.ok()) {
    return Complain(model.status(), kBadUsage);
  }
  const absl::StatusOr<std::unique_ptr<RunDir>> dir = RunDir::Open(flags.run_dir);
  if (!dir.ok()) {
    return Complain(dir.status(), kBadUsage);
  }
  Stack stack(spec, flags, *model, dir->get());
  Supervisor::Options options;
  options.drain_timeout_us = flags.drain_timeout_s * 1'000'000 + kStopMarginUs;
  options.on_all_ready = [&] {
    if (const absl::Status status =
            base::WriteFileByRename((*dir)->File("endpoints.json"), stack.EndpointsJson());
        !status.ok()) {
      base::LogError("endpoints.json not written", {{"reason", std::string(status.message())}});
    }
    std::printf("Serving %s on %s (logs in %s)\n", model->c_str(), stack.http_url().c_str(),
                (*dir)->path().c_str());
    std::fflush(stdout);
  };
  Supervisor supervisor(stack.Children(), std::move(options), &base::SystemClock());
  const int exit_status = supervisor.Run();
  if (exit_status == 0) {
    (*dir)->RemoveLogsAtEnd();
  }
  return exit_status;
}

}  // namespace tandem::cli
