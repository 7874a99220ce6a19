#include "gpu_worker/scheduler/scheduler.h"

#include <utility>

#include "gpu_worker/scheduler/planner.h"

namespace tandem::gpu_worker {

Scheduler::Scheduler(const SchedulerConfig& config, std::shared_ptr<const CostModel> cost_model)
    : config_(config), predictor_(std::move(cost_model)) {}

StepPlan Scheduler::Plan(const SchedulerState& state, int64_t now_us) const {
  Planner planner(config_, predictor_, state, now_us);
  return planner.Run();
}

SteadyState Scheduler::Study(const SchedulerState& state) const {
  return Planner(config_, predictor_, state, 0).Study();
}

bool Scheduler::CanEverHold(const SchedulerState& state, int64_t tokens) const {
  const TierRules rules = RulesOf(config_, state);
  return (rules.gpu_allowed && state.gpu.CanEverHold(tokens)) ||
         (rules.cpu_allowed && state.cpu.CanEverHold(tokens));
}

}  // namespace tandem::gpu_worker
