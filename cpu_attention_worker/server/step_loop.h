#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/attention_kernels/paged_decode.h"
#include "common/exchange/worker_side.h"
#include "cpu_attention_worker/batch/layer_job.h"
#include "cpu_attention_worker/server/worker_metrics.h"
#include "cpu_attention_worker/threading/thread_team.h"

namespace tandem::cpu_attention_worker {

// Serves the steps of one attachment on a thread of its own, which is also member 0 of the team.
class StepLoop {
 public:
  // `team` and `metrics` outlive the loop; no other loop may use the team meanwhile.
  // `on_refused` is called on the loop's thread.
  StepLoop(exchange::WorkerSide* side, attention::AttendSegmentFn attend, ThreadTeam* team,
           WorkerMetrics* metrics,
           std::function<void(uint64_t epoch, const std::string& message)> on_refused);
  ~StepLoop();  // as Stop(0)
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  // Takes no new step, lets the running one finish for at most `timeout_us`, and ends the thread.
  void Stop(int64_t timeout_us);
  // Takes no new step from now on.
  void RefuseNewSteps();
  // Whether the thread has ended (after RefuseNewSteps).
  bool ended() const { return ended_.load(); }
  // When the loop last came round, of base::SystemClock: stands still when it is stuck.
  int64_t progress_us() const { return progress_us_.load(); }

 private:
  void Run();
  void ServeStep();
  bool ServeLayers();  // false: the step was left before its last layer
  void ListReads(const exchange::WorkerSide::LayerWork& next, int member);
  bool IsSmall(const LayerJob& job) const;
  void LogStep(bool left, int64_t started_us) const;
  void RunLayer(int slot, int32_t layer, int64_t started_us);

  exchange::WorkerSide* const side_;
  ThreadTeam* const team_;
  WorkerMetrics* const metrics_;
  const std::function<void(uint64_t, const std::string&)> on_refused_;
  std::unique_ptr<LayerJob> jobs_[exchange::kNumSlots];
  std::atomic<bool> refuse_{false};
  std::atomic<int64_t> leave_us_{INT64_MAX};  // when to leave even a running step
  std::atomic<bool> ended_{false};
  std::atomic<int64_t> progress_us_;
  std::thread thread_;
};

}  // namespace tandem::cpu_attention_worker
