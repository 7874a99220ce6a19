#include "common/rpc/server.h"

#include <grpc/support/time.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <charconv>
#include <mutex>

#include "absl/strings/match.h"
#include "common/base/socket_path.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::rpc {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr int kKeepaliveMs = 30'000;
constexpr int kKeepaliveTimeoutMs = 10'000;
// Clients of ours ping more often than gRPC's default tolerance of five minutes allows.
constexpr int kMinPingIntervalMs = 5'000;

class GrpcServer : public Server {
 public:
  ~GrpcServer() override { Shutdown(0); }

  absl::Status Listen(const Options& options) {
    static std::once_flag once;
    std::call_once(once, [] {
      grpc::EnableDefaultHealthCheckService(true);
      grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    });
    grpc::ServerBuilder builder;
    builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port_);
    builder.SetMaxReceiveMessageSize(options.max_receive_message_bytes);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kMinPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a taken port is an error
    for (grpc::Service* service : options.services) {
      builder.RegisterService(service);
    }
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port_ <= 0) {
      return absl::UnavailableError(base::StrCat("cannot listen on ", options.address));
    }
    names_ = options.names;
    SetServing(options.serving);
    address_ = options.address;
    if (absl::StartsWith(address_, "unix:")) {
      port_ = 0;
    } else {
      address_ = base::StrCat(address_.substr(0, address_.rfind(':')), ":", port_);
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  const std::string& address() const override { return address_; }

  void SetServing(bool serving) override {
    if (auto* health = server_->GetHealthCheckService()) {
      health->SetServingStatus("", serving);
      for (const std::string& name : names_) {
        health->SetServingStatus(name, serving);
      }
    }
  }

  void Shutdown(int64_t timeout_us) override {
    const std::lock_guard lock(shutdown_mutex_);
    if (server_ != nullptr && !shut_down_) {
      shut_down_ = true;
      server_->Shutdown(gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                     gpr_time_from_micros(timeout_us, GPR_TIMESPAN)));
      server_->Wait();
    }
  }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::string> names_;
  std::string address_;
  int port_ = 0;
  std::mutex shutdown_mutex_;
  bool shut_down_ = false;
};

}  // namespace

absl::Status CheckAddress(std::string_view address) {
  if (address.starts_with(kUnixPrefix)) {
    const size_t length = address.size() - kUnixPrefix.size();
    if (length == 0) {
      return absl::InvalidArgumentError("allowed: unix:PATH with a path");
    }
    if (length > kMaxSocketPathBytes) {
      return absl::InvalidArgumentError(base::StrCat("the socket path has ", length,
                                                     " bytes; allowed: up to ", kMaxSocketPathBytes,
                                                     " (the kernel's limit)"));
    }
    if (!base::IsPlainSocketPath(address.substr(kUnixPrefix.size()))) {
      return absl::InvalidArgumentError(
          "allowed: a socket path without , % ? # (gRPC reads addresses as URIs)");
    }
    return absl::OkStatus();
  }
  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon != std::string_view::npos && colon > 0) {
    const std::string_view digits = address.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      port = -1;
    }
  }
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError("allowed: host:port or unix:PATH");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Options& options) {
  if (const absl::Status status = CheckAddress(options.address); !status.ok()) {
    return absl::InvalidArgumentError(
        base::StrCat("address '", options.address, "': ", status.message()));
  }
  auto server = std::make_unique<GrpcServer>();
  TANDEM_RETURN_IF_ERROR(server->Listen(options));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace tandem::rpc
