#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::rpc {

// Longest path that a unix socket's address holds.
inline constexpr size_t kMaxSocketPathBytes = 107;

// Checks `host:port` or `unix:PATH` and gives it in gRPC's spelling, which is the same.
// InvalidArgument says what is allowed; a unix path that is too long is refused with its length.
absl::Status CheckAddress(std::string_view address);

// A gRPC server with grpc.health.v1, reflection, bounded messages and keepalive. Thread-safe.
class Server {
 public:
  struct Options {
    std::string address;                   // host:port (port 0: a free one) or unix:PATH
    std::vector<grpc::Service*> services;  // outlive the server
    std::vector<std::string> names;        // of services that a health check may name, beside ""
    int max_receive_message_bytes = 16 << 20;
    bool serving = true;  // what health says at first
  };
  // InvalidArgument: bad address. Unavailable: it cannot be bound.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const Options& options);
  virtual ~Server() = default;  // as Shutdown(0)

  // The bound port, 0 for a unix socket.
  virtual int port() const = 0;
  // What a client may dial: the address with the port that was bound.
  virtual const std::string& address() const = 0;
  // Of service "" and of those named.
  virtual void SetServing(bool serving) = 0;
  // Takes no new calls; running ones may end until `timeout_us` is over, then they are cancelled.
  virtual void Shutdown(int64_t timeout_us) = 0;
};

}  // namespace tandem::rpc
