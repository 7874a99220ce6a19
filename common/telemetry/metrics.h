#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::telemetry {

using Labels = std::vector<std::pair<std::string, std::string>>;

// Handles are valid as long as the registry; every method is thread-safe and cheap (an atomic).
class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(double amount = 1.0) = 0;
};
class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
  virtual void Add(double amount) = 0;
};
class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;
};

// A process's metrics (prometheus-cpp behind it). The same name and labels give the same handle; a
// name must keep its kind. Label values must come from bounded sets.
class Registry {
 public:
  static std::unique_ptr<Registry> Create();
  virtual ~Registry() = default;
  virtual Counter& counter(const std::string& name, const std::string& help,
                           const Labels& labels = {}) = 0;
  virtual Gauge& gauge(const std::string& name, const std::string& help,
                       const Labels& labels = {}) = 0;
  virtual Histogram& histogram(const std::string& name, const std::string& help,
                               const std::vector<double>& bounds, const Labels& labels = {}) = 0;
  // Runs before each scrape, to set gauges from a snapshot. Thread-safe.
  virtual void AddCollectCallback(std::function<void()> callback) = 0;
  // Prometheus text format 0.0.4.
  virtual std::string Render() = 0;
};

// From 1 ms to 60 s, for latencies in seconds.
std::vector<double> LatencyBounds();
// From 1 us to 1 s, for layer and batch times in seconds.
std::vector<double> ShortLatencyBounds();

// Answers GET /metrics, /health (200 while `healthy`) and /ready (200 while `ready`, else 503) on
// its own thread.
class MetricsServer {
 public:
  // Port 0 picks a free one. Unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& host, int port,
                                                              Registry* registry,
                                                              std::function<bool()> healthy,
                                                              std::function<bool()> ready);
  virtual ~MetricsServer() = default;  // stops it
  virtual int port() const = 0;
};

}  // namespace tandem::telemetry
