#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/telemetry/metrics.h"
#include "gpu_worker/engine/engine.h"

namespace tandem::gpu_worker {

// The tandem_worker_* metrics. Thread-safe.
class WorkerMetrics {
 public:
  // Every series is there from the start.
  explicit WorkerMetrics(telemetry::Registry* registry);
  // Share of the model's weights that were loaded, 0 to 1.
  void SetLoaded(double share) { loaded_->Set(share); }
  // Brings all but the histograms up to a snapshot.
  void Update(const EngineSnapshot& snapshot);
  void Observe(const StepObservation& observation);

 private:
  // Turns a growing total into a counter.
  struct Total {
    telemetry::Counter* counter;
    uint64_t seen = 0;
    void Raise(uint64_t total);
  };

  telemetry::Registry* registry_;
  std::mutex mutex_;  // guards the totals
  std::vector<Total> totals_;
  std::vector<telemetry::Gauge*> gauges_;
  telemetry::Gauge* loaded_ = nullptr;
  std::vector<telemetry::Histogram*> step_seconds_;  // by StepMode
  std::map<std::string, telemetry::Histogram*> ratios_;
};

// Whether the engine makes progress while work is pending. Thread-safe.
class LivenessWatch {
 public:
  LivenessWatch(const base::Clock* clock, int64_t limit_us) : clock_(clock), limit_us_(limit_us) {}
  // False when the progress counter has stood still with work pending for longer than the limit,
  // as far as the calls of this method could see.
  bool Check(const EngineSnapshot& snapshot);

 private:
  const base::Clock* clock_;
  int64_t limit_us_;
  std::mutex mutex_;
  uint64_t progress_ = 0;
  int64_t moved_us_ = 0;
  bool started_ = false;
};

}  // namespace tandem::gpu_worker
