#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/serve/http_probe.h"
#include "cli/serve/supervisor.h"

namespace tandem::cli {

// Watches a child by its port file and its metrics port's /ready and /health.
class EndpointMonitor : public ChildMonitor {
 public:
  struct Options {
    std::string port_file;
    size_t num_ports = 1;
    size_t metrics_index = 0;        // which of the ports answers /ready and /health
    std::string host = "127.0.0.1";  // numeric
    bool wait_until_ready = false;   // else the port file alone makes it ready
    int64_t hang_limit_us = 20'000'000;
  };
  explicit EndpointMonitor(Options options) : options_(std::move(options)) {}

  void Reset() override;
  bool Ready(int64_t now_us) override;
  bool Hangs(int64_t now_us) override;

  // Of the last process that was ready; `fallback` while there was none. A restarted child gets
  // the port that its predecessor chose, so that URLs stay true.
  int port(size_t index, int64_t fallback) const;

 private:
  Options options_;
  std::vector<int> ports_;
  HttpProbe probe_;
  int64_t next_probe_us_ = 0;
  int64_t last_healthy_us_ = 0;
};

}  // namespace tandem::cli
