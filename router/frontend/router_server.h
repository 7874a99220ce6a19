#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "router/frontend/http/http_types.h"
#include "router/frontend/model_text.h"

namespace tandem::router {

struct RouterOptions {
  std::string listen = "127.0.0.1:8000";
  std::vector<std::string> workers;
  int num_threads = 2;
  HttpLimits http;
  std::string api_key;
  std::vector<std::string> allowed_origins = {"*"};
  ModelTextOptions text;
  std::string grpc_listen;  // tandem.v1.Inference for clients; empty: not served
  int64_t keep_alive_us = 15'000'000;
  int64_t max_concurrent_requests = 4096;
  int64_t request_timeout_us = 0;  // 0: none
  int64_t resume_timeout_us = 30'000'000;
  int max_pending_resumes = 1024;
  // The separate port of /metrics, /health and /ready.
  std::string metrics_host;
  int metrics_port = 9310;
};

// The whole router in one object: its connections to the workers, its HTTP servers, its threads.
class RouterServer {
 public:
  // Starts to serve; workers may come later. InvalidArgument: a bad address; Unavailable: a port
  // that is taken. `clock` outlives the server.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(const RouterOptions& options,
                                                             const base::Clock* clock);
  virtual ~RouterServer() = default;  // as Stop

  virtual int port() const = 0;
  virtual int metrics_port() const = 0;
  virtual int grpc_port() const = 0;  // 0: a unix socket, or none
  virtual bool ready() const = 0;
  // Not ready from now on; what runs goes on, and the listener stays to say no.
  virtual void BeginDrain() = 0;
  // Requests that have not ended.
  virtual int64_t running() const = 0;
  // Answers what runs with an error, 503 or an event in a stream, and waits a little until the
  // clients have it. Gives how many there were.
  virtual int64_t CutOff() = 0;
  // Ends everything; what runs is cancelled.
  virtual void Stop() = 0;
};

}  // namespace tandem::router
