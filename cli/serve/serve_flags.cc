#include "cli/serve/serve_flags.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "common/base/strings.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNodes = 64;
constexpr size_t kMaxNodeDigits = 4;
constexpr char kDemoFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr char kDemoVariable[] = "TANDEM_DEMO_MODEL";

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

absl::StatusOr<std::string> FindDemoModel(const std::string& program_dir) {
  if (const char* path = std::getenv(kDemoVariable); path != nullptr && *path != '\0') {
    if (!Exists(path)) {
      return absl::NotFoundError(base::StrCat(kDemoVariable, ": there is no ", path));
    }
    return path;
  }
  // build/bin lies two below the project's folder, where scripts/get_demo_model.sh puts it.
  std::vector<fs::path> folders = {fs::path(program_dir) / "../..", fs::current_path()};
  if (const char* home = std::getenv("HOME")) {
    folders.emplace_back(home);
  }
  for (const fs::path& folder : folders) {
    const fs::path path = folder / ".cache/tandem/demo" / kDemoFile;
    if (Exists(path)) {
      return path.lexically_normal().string();
    }
  }
  return absl::NotFoundError(
      base::StrCat("the demo model is not here: run scripts/get_demo_model.sh, or set ",
                   kDemoVariable, " to a path of ", kDemoFile));
}

}  // namespace

void DeclareServeFlags(base::ConfigSpec& spec, ServeFlags& flags) {
  spec.Positional("MODEL", &flags.model, 1,
                  "a .gguf file, a Hugging Face folder, or demo (a small model that "
                  "scripts/get_demo_model.sh fetches)");
  spec.String("host", &flags.host, "address of the HTTP server");
  spec.Int("port", &flags.port, 0, 65535, "port of the HTTP server; 0: a free one");
  spec.String("run-dir", &flags.run_dir,
              "folder for sockets, pid files, logs and endpoints.json (default: a fresh temporary "
              "folder)");
  spec.String("api-key", &flags.api_key, "key that HTTP clients must send");
  spec.Strings("allowed-origins", &flags.allowed_origins,
               "origins of the web pages whose scripts may use the server (default: *, all)");
  spec.String("grpc-listen", &flags.grpc_listen,
              "address of tandem.v1.Inference for clients, host:port or unix:PATH (default: not "
              "served)");
  router::DeclareTextFlags(spec, flags.text);
  gpu_worker::DeclareEngineFlags(spec, flags.worker);
  spec.OptionalInt("cpu-attention-threads", &flags.cpu_attention_threads, 1, 4096,
                   "threads of the CPU attention worker (default: the node's free cores)");
  spec.String("numa-node", &flags.numa_node,
              "NUMA node of the CPU attention worker: auto, N, or several (0,1): one worker each, "
              "which share out the KV heads");
  spec.Custom(
      "metrics-host", "IP",
      [&flags](std::string_view text) -> absl::Status {
        const std::string host(text);
        in6_addr address;
        if (inet_pton(AF_INET, host.c_str(), &address) != 1 &&
            inet_pton(AF_INET6, host.c_str(), &address) != 1) {
          return absl::InvalidArgumentError("allowed: an IP address");
        }
        flags.metrics_host = host;
        return absl::OkStatus();
      },
      "address that the three metrics ports bind (default: 127.0.0.1; the router's: --host's where "
      "that is 0.0.0.0 or ::)");
  spec.Int("router-metrics-port", &flags.router_metrics_port, 0, 65535,
           "port of the router's /metrics, /health and /ready; 0: a free one");
  spec.Int("cpu-attention-metrics-port", &flags.cpu_attention_metrics_port, 0, 65535,
           "port of the CPU attention worker's /metrics, /health and /ready; 0: a free one");
  spec.Int("drain-timeout", &flags.drain_timeout_s, 0, 86400,
           "seconds that running requests get to finish after SIGTERM");
  spec.String("program-dir", &flags.program_dir,
              "folder of the three programs (default: where this one lies)");
  spec.KnownVariable(kDemoVariable);
}

absl::StatusOr<std::vector<std::string>> ParseNumaNodes(const std::string& text) {
  std::vector<std::string> nodes;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string node = text.substr(begin, end - begin);
    const bool number = !node.empty() && node.size() <= kMaxNodeDigits &&
                        node.find_first_not_of("0123456789") == std::string::npos;
    if (!number && !(node == "auto" && text == "auto")) {
      return absl::InvalidArgumentError(base::StrCat(
          "--numa-node: bad value '", text, "': allowed: auto, or numbers of nodes (0,1)"));
    }
    if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) {
      return absl::InvalidArgumentError(
          base::StrCat("--numa-node: bad value '", text, "': node ", node, " is there twice"));
    }
    nodes.push_back(node);
    begin = end + 1;
  }
  if (nodes.size() > kMaxNodes) {
    return absl::InvalidArgumentError(
        base::StrCat("--numa-node: ", nodes.size(), " nodes; allowed: 1 to ", kMaxNodes));
  }
  return nodes;
}

absl::StatusOr<std::string> FindModel(const std::string& model, const std::string& program_dir) {
  if (Exists(model)) {
    return model;
  }
  if (model == "demo") {
    return FindDemoModel(program_dir);
  }
  return absl::NotFoundError(base::StrCat("MODEL: there is no file or folder ", model,
                                          "; allowed: a .gguf file, a Hugging Face folder, demo"));
}

}  // namespace tandem::cli
