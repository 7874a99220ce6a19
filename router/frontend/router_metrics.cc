#include "router/frontend/router_metrics.h"

#include <algorithm>
#include <array>

namespace tandem::router {
namespace {

constexpr std::array<int, 17> kStatuses = {200, 400, 401, 404, 405, 408, 413, 429, 431,
                                           499, 500, 501, 502, 503, 504, 505, 0};

size_t StatusIndex(int status) {
  const auto it = std::find(kStatuses.begin(), kStatuses.end(), status);
  return static_cast<size_t>(std::min<ptrdiff_t>(it - kStatuses.begin(), kStatuses.size() - 1));
}

}  // namespace

RouterMetrics::RouterMetrics(telemetry::Registry* registry, const Fleet* fleet)
    : registry_(registry) {
  for (size_t route = 0; route < kRouteCount; ++route) {
    for (const int status : kStatuses) {
      requests_.push_back(&registry->counter(
          "tandem_router_requests_total", "Requests by endpoint and HTTP status (499: client left)",
          {{"endpoint", std::string(RouteName(static_cast<Route>(route)))},
           {"code", status == 0 ? "other" : std::to_string(status)}}));
    }
  }
  for (int i = 0; i < kRecoveryReasonCount; ++i) {
    const telemetry::Labels labels = {
        {"reason", RecoveryReasonName(static_cast<RecoveryReason>(i))}};
    retries_[i] = &registry->counter("tandem_router_retries_total",
                                     "Sequences sent again before their first token", labels);
    resumes_[i] = &registry->counter("tandem_router_resumes_total",
                                     "Sequences continued by a worker after a loss", labels);
  }
  struct WorkerGauges {
    telemetry::Gauge *inflight, *queue, *ready;
  };
  std::vector<WorkerGauges> gauges;
  for (int i = 0; i < fleet->size(); ++i) {
    const telemetry::Labels labels = {{"worker", fleet->address(i)}};
    gauges.push_back({&registry->gauge("tandem_router_inflight_requests",
                                       "Sequences that this router has at the worker", labels),
                      &registry->gauge("tandem_router_queue_depth",
                                       "Of these, sequences without a token yet", labels),
                      &registry->gauge("tandem_router_worker_ready",
                                       "1 while the worker takes requests", labels)});
  }
  registry->AddCollectCallback([fleet, gauges] {
    const std::vector<WorkerView> workers = fleet->Workers();
    for (size_t i = 0; i < workers.size(); ++i) {
      gauges[i].inflight->Set(workers[i].inflight);
      gauges[i].queue->Set(workers[i].waiting);
      gauges[i].ready->Set(workers[i].ready ? 1 : 0);
    }
  });
}

void RouterMetrics::CountRequest(Route route, int status) {
  requests_[static_cast<size_t>(route) * kStatuses.size() + StatusIndex(status)]->Add();
}

void RouterMetrics::CountRecovery(bool resumed, RecoveryReason reason) {
  (resumed ? resumes_ : retries_)[static_cast<int>(reason)]->Add();
}

const ModelMetrics* RouterMetrics::ForModel(const std::string& name) {
  std::lock_guard lock(mutex_);
  const auto found = models_.find(name);
  if (found != models_.end()) {
    return &found->second;
  }
  const telemetry::Labels labels = {{"model", name}};
  const std::vector<double> bounds = telemetry::LatencyBounds();
  ModelMetrics metrics;
  metrics.duration_s =
      &registry_->histogram("tandem_router_request_duration_seconds",
                            "From request to the end of its answer", bounds, labels);
  metrics.first_token_s = &registry_->histogram("tandem_router_time_to_first_token_seconds",
                                                "From request to its first token", bounds, labels);
  metrics.inter_token_s = &registry_->histogram("tandem_router_inter_token_latency_seconds",
                                                "Between the tokens of a sequence", bounds, labels);
  return &models_.emplace(name, metrics).first->second;
}

}  // namespace tandem::router
