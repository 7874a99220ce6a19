#include <algorithm>

#include "router/policy/policy.h"

namespace tandem::router {

std::vector<WorkerView> Filter(std::span<const WorkerView> workers, const PickRequest& request) {
  std::vector<WorkerView> candidates;
  for (const WorkerView& worker : workers) {
    const auto& excluded = request.excluded_workers;
    if (worker.ready && worker.model_id == request.model_id &&
        std::find(excluded.begin(), excluded.end(), worker.index) == excluded.end()) {
      candidates.push_back(worker);
    }
  }
  return candidates;
}

}  // namespace tandem::router
