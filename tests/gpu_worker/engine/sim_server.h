#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "gpu_worker/cost_model/predictor.h"
#include "gpu_worker/engine/engine_core.h"

namespace tandem::gpu_worker {

// An EngineCore with a clock that jumps from step to step: steps take the time that `truth`
// predicts for them, whatever the engine believes. Tokens mean nothing.
class SimServer {
 public:
  SimServer(const EngineOptions& options, const RunnerLimits& limits,
            std::shared_ptr<const CostModel> believed, std::shared_ptr<const CostModel> truth);

  // 0 when refused.
  uint64_t Submit(int32_t prompt, int32_t output, int32_t priority = 0);
  void Cancel(uint64_t id) { core_.Cancel(id); }
  // One step; false when there is nothing to run.
  bool Step();
  // Until `until_us` or nothing is open.
  void RunUntil(double until_us);
  void Wait(double us) { now_us_ += us; }
  // While it is down, steps that use it are aborted.
  void SetCpuWorkerUp(bool up);
  bool cpu_worker_up() const { return cpu_worker_up_; }
  bool RunToEnd(int most_steps = 1'000'000);

  struct Times {
    double submitted_us = 0;
    double first_us = 0;  // 0: no token yet
    double last_us = 0;
    double longest_gap_us = 0;
    int32_t tokens = 0;
    bool ended = false;
  };
  const Times& times(uint64_t id) { return times_[id]; }
  double now_us() const { return now_us_; }
  int64_t tokens() const { return tokens_; }
  int64_t ended() const { return ended_; }
  double last_step_us() const { return last_step_us_; }
  const StepPrediction& last_truth() const { return last_truth_; }
  EngineCore& core() { return core_; }
  // Of the CPU worker's true time: what others leave it.
  void set_cpu_share(double share) { cpu_share_ = share; }
  double cpu_busy_us() const { return cpu_busy_us_; }

 private:
  int64_t clock() const { return static_cast<int64_t>(now_us_); }
  StepOutput Run(const StepInput& input);
  void TakeUpdates();

  EngineCore core_;
  Predictor truth_;
  double now_us_ = 1'000'000;
  double last_step_us_ = 0;
  double cpu_share_ = 1;
  bool cpu_worker_up_ = false;
  double cpu_busy_us_ = 0;
  StepPrediction last_truth_;
  int64_t tokens_ = 0;
  int64_t ended_ = 0;
  std::map<uint64_t, Times> times_;
};

// T4 with Llama-2-7B, and what its host's memory gives.
MeasuredRates T4Rates(double cpu_gb_per_s);
// A10G with Llama-3.1-8B.
MeasuredRates A10gRates(double cpu_gb_per_s);
// Pools in tokens, 256 CPU rows a slot.
RunnerLimits SimLimits(int64_t gpu_tokens, int64_t cpu_tokens);

}  // namespace tandem::gpu_worker
