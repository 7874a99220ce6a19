#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "router/frontend/http/http_types.h"

namespace tandem::router {

// Accepts connections and serves each on one of a fixed number of threads, each with an io_context
// of its own: nothing of a connection is ever shared between threads.
class HttpServer {
 public:
  struct Options {
    std::string address;  // host:port (port 0: a free one) or unix:PATH
    int num_threads = 2;
    HttpLimits limits;
  };

  // Starts to serve. InvalidArgument: bad address; Unavailable: it cannot be bound. `handler` and
  // `clock` outlive the server.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options,
                                                           HttpHandler* handler,
                                                           const base::Clock* clock);
  virtual ~HttpServer() = default;  // as Stop

  virtual int port() const = 0;  // 0 for a unix socket
  // Closes the listener and every connection, and ends the threads.
  virtual void Stop() = 0;
  // Every thread came round within the last seconds.
  virtual bool making_progress() const = 0;
  virtual int connections() const = 0;
  // Of the server's thread `index`; stays until the server goes.
  virtual boost::asio::io_context& io(int index) = 0;
  virtual int num_threads() const = 0;
};

}  // namespace tandem::router
