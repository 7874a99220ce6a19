#pragma once

#include "common/telemetry/metrics.h"

namespace tandem::cpu_attention_worker {

// The tandem_cpu_attention_* metrics; every series exists from the start. Thread-safe.
struct WorkerMetrics {
  explicit WorkerMetrics(telemetry::Registry* registry);

  telemetry::Counter& batches;            // one per slot and layer
  telemetry::Counter& read_bytes;         // K and V that batches needed
  telemetry::Histogram& compute_seconds;  // of a batch
  telemetry::Histogram& wait_seconds;     // for the device, before a batch of a running step
  telemetry::Counter& steps_aborted;
  telemetry::Counter& steps_refused;
  telemetry::Gauge& attached;
  telemetry::Gauge& huge_page_bytes;
  telemetry::Gauge& misplaced_bytes;
  telemetry::Gauge& locked_bytes;
  telemetry::Gauge& memory_bound;
  telemetry::Gauge& extents_ready;
};

}  // namespace tandem::cpu_attention_worker
