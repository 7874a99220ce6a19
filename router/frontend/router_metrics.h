#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/telemetry/metrics.h"
#include "router/fleet/fleet.h"
#include "router/frontend/routes.h"
#include "router/router_core/sequence_state.h"

namespace tandem::router {

// Histograms of one model.
struct ModelMetrics {
  telemetry::Histogram* duration_s = nullptr;
  telemetry::Histogram* first_token_s = nullptr;
  telemetry::Histogram* inter_token_s = nullptr;
};

// The router's metrics, all of them there from the start. Thread-safe.
class RouterMetrics {
 public:
  // Both outlive it.
  RouterMetrics(telemetry::Registry* registry, const Fleet* fleet);

  void CountRequest(Route route, int status);
  void CountRecovery(bool resumed, RecoveryReason reason);
  // Only for names that workers serve, which bounds the label.
  const ModelMetrics* ForModel(const std::string& name);

 private:
  telemetry::Registry* const registry_;
  std::vector<telemetry::Counter*> requests_;  // [route][status]
  telemetry::Counter* retries_[kRecoveryReasonCount];
  telemetry::Counter* resumes_[kRecoveryReasonCount];
  std::mutex mutex_;
  std::map<std::string, ModelMetrics> models_;
};

}  // namespace tandem::router
