#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu_worker/engine/engine_core.h"
#include "tests/fakes/fake_step_runner.h"

namespace tandem::gpu_worker {

// A pool too small for comfort, short steps: what most tests start from.
RunnerLimits SmallLimits(int32_t gpu_blocks, int32_t cpu_blocks);
// A device that is bound by reading weights, with a CPU that attends on the same cores.
MeasuredRates HostLikeRates();

// Drives an EngineCore on a fake runner with a clock of its own: one call is one step.
class CoreDriver {
 public:
  CoreDriver(const EngineOptions& options, const RunnerLimits& limits,
             const MeasuredRates& rates = MeasuredRates());

  // Of `length` tokens that depend on `seed`.
  GenerationRequest Request(int32_t length, int32_t max_tokens, int32_t seed = 0) const;
  // 0 when it is refused.
  uint64_t Submit(GenerationRequest request);
  void CpuWorkerUp();
  void CpuWorkerDown();

  // Plans and runs one step; false: nothing to run. Time goes on by `step_us`.
  bool Step();
  // Until nothing is open; false after `most` steps.
  bool RunToEnd(int most = 10'000);

  struct Outcome {
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> prompt_logprobs;
    GenerationUpdate last;
    bool ended = false;
  };
  const Outcome& outcome(uint64_t id) { return outcomes_[id]; }
  // What the fake model says the sequence has to end with.
  std::vector<int32_t> Expected(const GenerationRequest& request) const;
  void TakeUpdates();

  EngineCore& core() { return *core_; }
  FakeStepRunner& runner() { return runner_; }
  EngineSnapshot snapshot() const { return core_->snapshot(now_us); }

  int64_t now_us = 1'000'000;
  int64_t step_us = 10'000;

 private:
  EngineOptions options_;
  FakeStepRunner runner_;
  std::unique_ptr<EngineCore> core_;
  std::map<uint64_t, Outcome> outcomes_;
};

}  // namespace tandem::gpu_worker
