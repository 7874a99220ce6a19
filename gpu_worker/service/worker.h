#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/model_files/model_files.h"
#include "common/rpc/server.h"
#include "common/telemetry/metrics.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/pipeline/pipeline_runner.h"
#include "gpu_worker/service/cpu_attention_link.h"
#include "gpu_worker/service/grammar_service.h"
#include "gpu_worker/service/inference_service.h"
#include "gpu_worker/service/tier_status.h"
#include "gpu_worker/service/worker_control_service.h"
#include "gpu_worker/service/worker_flags.h"
#include "gpu_worker/service/worker_metrics.h"
#include "gpu_worker/service/worker_options.h"

namespace tandem::gpu_worker {

// A whole GPU worker: model, runner, engine, link to the CPU attention worker, servers.
class Worker {
 public:
  // Loads everything and serves. The CPU attention worker may attach later. Errors name the flag
  // or the model's field.
  static absl::StatusOr<std::unique_ptr<Worker>> Start(const WorkerFlags& flags,
                                                       const base::Clock* clock);
  // Ends what still runs.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Not ready from now on; running and queued sequences finish. Any thread, idempotent.
  void BeginDrain();
  // True when no sequence is left.
  bool WaitIdle(int64_t timeout_us) { return engine_->WaitIdle(timeout_us); }
  // Lets calls that are just ending end, and closes the servers.
  void Shutdown();

 private:
  explicit Worker(const base::Clock* clock);
  absl::Status StartMetrics(const WorkerFlags& flags);
  absl::Status Load(const WorkerFlags& flags);
  absl::Status Serve(const WorkerFlags& flags);
  void StartLinks();
  CpuAttentionLink::Callbacks LinkCallbacks(size_t worker);
  bool Healthy();
  bool Ready() const { return serving_.load() && !draining_.load(); }

  const base::Clock* clock_;
  std::atomic<bool> loaded_{false};
  std::atomic<bool> serving_{false};
  std::atomic<bool> draining_{false};
  std::mutex drain_mutex_;

  std::unique_ptr<telemetry::Registry> registry_;
  WorkerMetrics metrics_;
  LivenessWatch liveness_;
  WorkerOptions options_;
  ServedModel served_;
  // Destroyed from the last to the first: servers before what they call.
  std::unique_ptr<PipelineRunner> runner_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<GrammarService> grammars_;
  std::mutex tier_mutex_;  // the engine hears of the workers in the order in which it is taken
  TierStatus tier_{0};
  std::vector<std::string> descriptions_;  // of the workers
  std::vector<std::unique_ptr<CpuAttentionLink>> links_;
  std::unique_ptr<telemetry::MetricsServer> metrics_server_;
  std::unique_ptr<InferenceService> inference_;
  std::unique_ptr<WorkerControlService> control_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace tandem::gpu_worker
