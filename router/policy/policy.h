#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tandem::router {

// One worker as a policy sees it.
struct WorkerView {
  int index = 0;
  bool ready = false;  // serving, and its tokenizer is loaded
  int model_id = -1;   // workers of the same id answer the same requests
  int inflight = 0;    // sequences of this router
  int waiting = 0;     // of these, those without a token yet
};

struct PickRequest {
  int model_id = -1;
  std::span<const int> excluded_workers;
};

// The part of `workers` that can take the request.
std::vector<WorkerView> Filter(std::span<const WorkerView> workers, const PickRequest& request);

// Chooses among the workers that passed the filter. Pure but for its own counters; not thread-safe.
class Policy {
 public:
  virtual ~Policy() = default;
  // `candidates` is not empty; gives the index of a worker.
  virtual int Pick(std::span<const WorkerView> candidates) = 0;
};

}  // namespace tandem::router
