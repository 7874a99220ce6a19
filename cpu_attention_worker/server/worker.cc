#include "cpu_attention_worker/server/worker.h"

#include <charconv>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace tandem::cpu_attention_worker {
namespace {

constexpr int64_t kCallsEndUs = 1'000'000;

absl::StatusOr<std::optional<int>> ParseNode(const std::string& text) {
  if (text == "auto") {
    return std::optional<int>();
  }
  int node = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), node);
  if (error != std::errc() || end != text.data() + text.size() || node < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--numa-node ", text, "; allowed: auto or the number of a node"));
  }
  return std::optional<int>(node);
}

}  // namespace

Worker::Worker() : registry_(telemetry::Registry::Create()), metrics_(registry_.get()) {}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const WorkerFlags& flags) {
  if (flags.socket.empty()) {
    return absl::InvalidArgumentError("--socket is missing; allowed: a path for the unix socket");
  }
  std::unique_ptr<Worker> worker(new Worker);
  TANDEM_RETURN_IF_ERROR(worker->Place(flags));
  TANDEM_RETURN_IF_ERROR(worker->Serve(flags));
  return worker;
}

absl::Status Worker::Place(const WorkerFlags& flags) {
  absl::StatusOr<attention::Isa> isa = attention::ChooseIsa(flags.isa);
  if (!isa.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--isa: ", isa.status().message()));
  }
  TANDEM_ASSIGN_OR_RETURN(topology_, topology::Topology::Load());
  topology::PlacementRequest request;
  TANDEM_ASSIGN_OR_RETURN(request.numa_node, ParseNode(flags.numa_node));
  request.threads = flags.threads;
  TANDEM_ASSIGN_OR_RETURN(placed_.placement,
                          topology::ChoosePlacement(topology_->snapshot(), request));
  placed_.topology = topology_.get();
  placed_.isa = *isa;
  placed_.kv_dtype = DTypeOfName(flags.kv_dtype);
  team_ = std::make_unique<ThreadTeam>(placed_.placement.cpus);
  placed_.team = team_.get();
  placed_.metrics = &metrics_;
  base::LogInfo("placed", {{"numa_node", placed_.placement.numa_node},
                           {"threads", team_->size()},
                           {"isa", attention::IsaName(placed_.isa)},
                           {"why", placed_.placement.reason}});
  return absl::OkStatus();
}

absl::Status Worker::Serve(const WorkerFlags& flags) {
  service_ = std::make_unique<ControlService>(placed_);
  TANDEM_ASSIGN_OR_RETURN(
      metrics_server_,
      telemetry::MetricsServer::Start(
          flags.metrics_host, static_cast<int>(flags.metrics_port), registry_.get(),
          [this] { return service_->Healthy(); }, [this] { return ready_.load(); }));
  TANDEM_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.address = "unix:" + flags.socket,
                                                       .services = {service_.get()}}));
  // Last: who can pass a region finds everything else there.
  TANDEM_ASSIGN_OR_RETURN(inbox_, DescriptorInbox::Listen(flags.socket + ".fd"));
  service_->SetInbox(inbox_.get());
  ready_.store(true);
  base::LogInfo("serving", {{"socket", flags.socket}, {"metrics_port", metrics_server_->port()}});
  if (!flags.port_file.empty()) {
    return base::WritePortFile(flags.port_file, {metrics_server_->port()});
  }
  return absl::OkStatus();
}

void Worker::Drain(int64_t timeout_us) {
  ready_.store(false);
  server_->SetServing(false);
  if (!service_->DrainAll(timeout_us)) {
    base::LogWarning("the running step did not end in time");
  }
}

Worker::~Worker() {
  if (server_ != nullptr) {
    server_->Shutdown(kCallsEndUs);
  }
}

}  // namespace tandem::cpu_attention_worker
