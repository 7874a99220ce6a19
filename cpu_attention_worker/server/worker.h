#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/server.h"
#include "common/telemetry/metrics.h"
#include "cpu_attention_worker/server/control_service.h"

namespace tandem::cpu_attention_worker {

struct WorkerFlags {
  std::string socket;
  std::optional<int64_t> threads;
  std::string numa_node = "auto";
  std::string isa = "auto";
  std::string kv_dtype = "auto";
  std::string metrics_host = "127.0.0.1";
  int64_t metrics_port = 9312;
  std::string port_file;  // gets the metrics port once everything listens
};

// The whole process but its signals: placement, threads, sockets, metrics.
class Worker {
 public:
  // InvalidArgument and FailedPrecondition name the flag; Unavailable: a port or socket is taken.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerFlags& flags);
  ~Worker();

  int metrics_port() const { return metrics_server_->port(); }
  // Not ready any more; the running step finishes, then everything is detached.
  void Drain(int64_t timeout_us);

 private:
  Worker();
  absl::Status Place(const WorkerFlags& flags);
  absl::Status Serve(const WorkerFlags& flags);

  std::unique_ptr<telemetry::Registry> registry_;
  WorkerMetrics metrics_;
  std::unique_ptr<topology::Topology> topology_;
  std::unique_ptr<ThreadTeam> team_;
  Placed placed_;
  std::atomic<bool> ready_{false};
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<DescriptorInbox> inbox_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<telemetry::MetricsServer> metrics_server_;
};

}  // namespace tandem::cpu_attention_worker
