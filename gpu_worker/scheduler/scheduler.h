#pragma once

#include <cstdint>
#include <memory>

#include "gpu_worker/cost_model/cost_model.h"
#include "gpu_worker/cost_model/predictor.h"
#include "gpu_worker/scheduler/offload_policy.h"
#include "gpu_worker/scheduler/scheduler_state.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace tandem::gpu_worker {

// Parts of policy auto that can be switched off, to show what each of them is worth.
struct SchedulerSwitches {
  bool unified = true;
  bool asymmetric = true;
  bool guard = true;
  bool chunk_balancing = true;
};

// Rules, bounds and watermarks are explained in DESIGN.md of this folder.
struct SchedulerConfig {
  OffloadPolicy policy = OffloadPolicy::kAuto;
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
  int32_t saturating_rows = 0;  // > 0: a step with as many prompt tokens starts no further prompt
  int32_t max_cpu_rows_per_slot = 0;
  int64_t max_cpu_table_entries_per_slot = 0;
  int64_t max_step_us = 0;  // > 0: steps with decodes shall stay below
  SchedulerSwitches switches;
  int64_t residency_us = 500'000;       // after a move, before the next move back
  uint64_t max_passed_over_steps = 32;  // then a CPU decode goes first, whatever mode or guard say
  uint64_t pushed_out_patience = 8;     // times as many, for those that only wait to come back
  double mode_margin = 0.05;            // gain that leaves the current mode
  int32_t max_swap_ins_per_step = 32;   // above 4 only as many as hide behind the device's decodes
  // The same bound for the published policy, which has none: long, to leave its choices alone.
  uint64_t neo_max_passed_over_steps = 1024;
};

// state + time -> the next step. Pure, immutable; any thread.
class Scheduler {
 public:
  Scheduler(const SchedulerConfig& config, std::shared_ptr<const CostModel> cost_model);

  StepPlan Plan(const SchedulerState& state, int64_t now_us) const;
  // For SchedulerState::steady of the next plans.
  SteadyState Study(const SchedulerState& state) const;
  // Whether a sequence of `tokens` can ever be held under the policy with both workers up.
  bool CanEverHold(const SchedulerState& state, int64_t tokens) const;

  const SchedulerConfig& config() const { return config_; }
  const Predictor& predictor() const { return predictor_; }

 private:
  SchedulerConfig config_;
  Predictor predictor_;
};

}  // namespace tandem::gpu_worker
