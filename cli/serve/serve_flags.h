#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/config.h"
#include "gpu_worker/service/worker_flags.h"
#include "router/frontend/text_flags.h"

namespace tandem::cli {

struct ServeFlags {
  std::vector<std::string> model;  // one
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  std::string run_dir;
  std::string api_key;
  std::vector<std::string> allowed_origins;
  std::string grpc_listen;
  router::TextFlags text;
  std::string metrics_host;  // numeric; empty: loopback, or the router's wildcard address
  int64_t router_metrics_port = 9310;
  int64_t cpu_attention_metrics_port = 9312;
  std::optional<int64_t> cpu_attention_threads;
  std::string numa_node = "auto";
  int64_t drain_timeout_s = 120;
  std::string program_dir;
  gpu_worker::WorkerFlags worker;
};

void DeclareServeFlags(base::ConfigSpec& spec, ServeFlags& flags);

// The value of --numa-node: "auto", or the numbers of different nodes with commas between; one CPU
// attention worker runs on each. InvalidArgument says what is allowed.
absl::StatusOr<std::vector<std::string>> ParseNumaNodes(const std::string& text);

// A file or folder that MODEL names; `demo` is looked for in the places that the demo's scripts
// use. NotFound says what to do.
absl::StatusOr<std::string> FindModel(const std::string& model, const std::string& program_dir);

}  // namespace tandem::cli
