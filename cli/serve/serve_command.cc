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
#include "common/model_files/model_files.h"

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

std::string WithoutBrackets(const std::string& host) {
  return host.size() > 2 && host.front() == '[' && host.back() == ']'
             ? host.substr(1, host.size() - 2)
             : host;
}

// The address that a child's metrics port binds: told to every child, as it must be the one that we
// probe, whatever --host says. A router that is open to all shows its metrics to all.
std::string MetricsHost(const ServeFlags& flags, bool of_router) {
  if (!flags.metrics_host.empty()) {
    return flags.metrics_host;
  }
  const std::string host = WithoutBrackets(flags.host);
  return of_router && (host == "0.0.0.0" || host == "::") ? host : kLoopback;
}

std::string ProbeHost(const ServeFlags& flags, bool of_router) {
  return WithoutBrackets(DialHost(MetricsHost(flags, of_router)));
}

// The children of one `tandem serve`, as the supervisor sees them: a CPU attention worker per NUMA
// node, the GPU worker, the router.
class Stack {
 public:
  Stack(const base::ConfigSpec& spec, const ServeFlags& flags, std::string model,
        const std::vector<std::string>& numa_nodes, RunDir* dir)
      : spec_(spec),
        flags_(flags),
        model_(std::move(model)),
        dir_(dir),
        environment_(CurrentEnvironment()),
        gpu_({.port_file = dir->File("gpu-worker.ports"),
              .num_ports = 2,
              .host = ProbeHost(flags, false)}),
        router_({.port_file = dir->File("router.ports"),
                 .num_ports = 2,
                 .metrics_index = kRouterMetrics,
                 .host = ProbeHost(flags, true),
                 .wait_until_ready = true}) {
    for (const std::string& name : spec.Variables()) {
      environment_.erase(name);  // children get what it says as flags
    }
    for (const std::string& node : numa_nodes) {
      const std::string suffix = cpus_.empty() ? "" : base::StrCat("-", cpus_.size());
      const std::string name = base::StrCat("cpu-attention-worker", suffix);
      cpus_.push_back(
          {.name = name,
           .node = node,
           .socket = dir->Socket(base::StrCat("cpu-attention", suffix, ".sock")),
           .monitor = std::make_unique<EndpointMonitor>(EndpointMonitor::Options{
               .port_file = dir->File(name + ".ports"), .host = ProbeHost(flags, false)})});
    }
  }

  // In starting order.
  std::vector<SupervisedChild> Children() {
    std::vector<SupervisedChild> children;
    for (size_t i = 0; i < cpus_.size(); ++i) {
      children.push_back(
          Child(cpus_[i].name, cpus_[i].monitor.get(), [this, i] { return CpuCommand(i); }));
    }
    children.push_back(Child("gpu-worker", &gpu_, [this] { return GpuCommand(); }));
    children.push_back(Child("router", &router_, [this] { return RouterCommand(); }));
    return children;
  }

  std::string http_url() const {
    return base::StrCat("http://", DialHost(flags_.host), ":",
                        router_.port(kRouterHttp, flags_.port));
  }

  std::string EndpointsJson() const {
    const auto metrics = [this](const EndpointMonitor& monitor, size_t index = 0) {
      return base::StrCat("http://", DialHost(MetricsHost(flags_, &monitor == &router_)), ":",
                          monitor.port(index, 0), "/metrics");
    };
    nlohmann::ordered_json urls = {{"router", metrics(router_, kRouterMetrics)},
                                   {"gpu_worker", metrics(gpu_)}};
    for (size_t i = 0; i < cpus_.size(); ++i) {
      const std::string suffix = i == 0 ? "" : base::StrCat("_", i);
      urls[base::StrCat("cpu_attention_worker", suffix)] = metrics(*cpus_[i].monitor);
    }
    const nlohmann::ordered_json json = {{"http", http_url()}, {"metrics", urls}};
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

  // `process`: its name among the children, where that is not the program's.
  std::vector<std::string> Program(const std::string& name, const std::string& process = "") const {
    return {base::StrCat(flags_.program_dir, "/tandem-", name),
            "--port-file",
            dir_->File((process.empty() ? name : process) + ".ports"),
            "--log-level",
            spec_.log_level(),
            "--log-format",
            spec_.log_format(),
            "--metrics-host",
            MetricsHost(flags_, name == "router")};
  }

  void Forward(const std::string& name, std::vector<std::string>* command) const {
    for (const std::string& value : spec_.ValuesOf(name)) {
      command->push_back(base::StrCat("--", name, "=", value));
    }
  }

  static void ForwardPort(const std::string& name, int port, std::vector<std::string>* command) {
    command->push_back(base::StrCat("--", name, "=", port));
  }

  std::vector<std::string> CpuCommand(size_t index) const {
    const CpuWorker& worker = cpus_[index];
    std::vector<std::string> command = Program("cpu-attention-worker", worker.name);
    command.insert(command.end(), {"--socket", worker.socket, "--numa-node", worker.node});
    Forward("cpu-attention-threads", &command);
    Forward("cpu-kv-dtype", &command);
    // The ports behind the first one's, unless any will do.
    const int64_t first = flags_.cpu_attention_metrics_port;
    const int64_t port = first == 0 ? 0 : first + static_cast<int64_t>(index);
    ForwardPort("cpu-attention-metrics-port", worker.monitor->port(0, port), &command);
    return command;
  }

  std::vector<std::string> GpuCommand() const {
    std::vector<std::string> command = Program("gpu-worker");
    command.insert(command.end(), {"--model", model_, "--listen",
                                   base::StrCat("unix:", dir_->Socket("gpu-worker.sock"))});
    for (const CpuWorker& worker : cpus_) {
      command.insert(command.end(), {"--cpu-attention-socket", worker.socket});
    }
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
    for (const char* name : {"grpc-listen", "allowed-origins", "chat-template", "tool-call-parser",
                             "reasoning-parser"}) {
      Forward(name, &command);
    }
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
  struct CpuWorker {
    std::string name;
    std::string node;
    std::string socket;
    std::unique_ptr<EndpointMonitor> monitor;
  };
  std::vector<CpuWorker> cpus_;
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

// A model whose template cannot be used still completes texts; its chats would all be refused.
void WarnOfTemplate(const ServeFlags& flags, const std::string& path, int64_t now_unix_s) {
  const auto model =
      model_files::OpenModel(path, {.dummy_weights = flags.worker.load_format == "dummy"});
  if (!model.ok() || !flags.text.chat_template.empty()) {
    return;  // the GPU worker says what is wrong with the model
  }
  const std::string& source = (*model)->tokenizer().chat_template;
  if (source.empty()) {
    return;
  }
  if (const absl::Status status = router::CheckChatTemplate(source, now_unix_s); !status.ok()) {
    std::fprintf(stderr,
                 "tandem serve: warning: the model's chat template cannot be used (%s): chats will "
                 "be refused; --chat-template gives another\n",
                 std::string(status.message()).c_str());
  }
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
  // The router would say the same, but in its log.
  const int64_t now_unix_s = base::SystemClock().UnixUs() / 1'000'000;
  if (const auto text = router::ReadTextFlags(flags.text, now_unix_s); !text.ok()) {
    return Complain(text.status(), kBadUsage);
  }
  WarnOfTemplate(flags, *model, now_unix_s);
  const absl::StatusOr<std::vector<std::string>> numa_nodes = ParseNumaNodes(flags.numa_node);
  if (!numa_nodes.ok()) {
    return Complain(numa_nodes.status(), kBadUsage);
  }
  const absl::StatusOr<std::unique_ptr<RunDir>> dir = RunDir::Open(flags.run_dir);
  if (!dir.ok()) {
    return Complain(dir.status(), kBadUsage);
  }
  Stack stack(spec, flags, *model, *numa_nodes, dir->get());
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
