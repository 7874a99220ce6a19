#include "cpu_attention_worker/server/worker_metrics.h"

namespace tandem::cpu_attention_worker {

WorkerMetrics::WorkerMetrics(telemetry::Registry* registry)
    : batches(registry->counter("tandem_cpu_attention_batches_total",
                                "Batches attended: one per slot of a step and layer.")),
      read_bytes(registry->counter("tandem_cpu_attention_read_bytes_total",
                                   "Bytes of K and V that the batches needed.")),
      compute_seconds(registry->histogram("tandem_cpu_attention_compute_seconds",
                                          "Time of a batch.", telemetry::ShortLatencyBounds())),
      wait_seconds(registry->histogram("tandem_cpu_attention_wait_seconds",
                                       "Time waited for the device before a batch.",
                                       telemetry::ShortLatencyBounds())),
      steps_aborted(registry->counter("tandem_cpu_attention_steps_aborted_total",
                                      "Steps that were left before their last layer.")),
      steps_refused(registry->counter("tandem_cpu_attention_steps_refused_total",
                                      "Steps whose descriptor failed its check.")),
      attached(registry->gauge("tandem_cpu_attention_attached",
                               "1 while a GPU worker's region is attached.")),
      huge_page_bytes(registry->gauge("tandem_cpu_attention_huge_page_bytes",
                                      "Bytes of the pool on 2 MiB pages.")),
      misplaced_bytes(registry->gauge("tandem_cpu_attention_misplaced_bytes",
                                      "Bytes of the pool on another NUMA node than asked for.")),
      locked_bytes(registry->gauge("tandem_cpu_attention_locked_bytes",
                                   "Bytes of the pool that cannot be swapped out.")),
      memory_bound(registry->gauge("tandem_cpu_attention_memory_bound",
                                   "1 while the pool is bound to its NUMA node.")),
      extents_ready(registry->gauge("tandem_cpu_attention_extents_ready",
                                    "Extents of the pool that are touched.")) {}

}  // namespace tandem::cpu_attention_worker
