#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "gpu_worker/scheduler/scheduler.h"

namespace tandem::gpu_worker {

// A device that is bound by reading weights; the CPU attends at a quarter of its bandwidth beside
// it.
MeasuredRates SteadyRates();

// Makes scheduler states sequence by sequence. Pools: 64 device blocks of 16, 16 CPU blocks of 128.
class StateBuilder {
 public:
  StateBuilder();

  // Each returns the id. `tokens` known so far; blocks are counted.
  uint64_t GpuDecode(int64_t tokens);
  uint64_t CpuDecode(int64_t tokens);
  uint64_t GpuPrefill(int64_t prompt, int64_t done);
  uint64_t CpuPrefill(int64_t prompt, int64_t done);
  uint64_t Waiting(int64_t prompt);
  SequenceView& view(uint64_t id) { return views_[id - 1]; }

  // The state with spans into this object.
  const SchedulerState& Build();
  StepPlan Plan(const SchedulerConfig& config, const MeasuredRates& rates = SteadyRates());

  SchedulerState state;
  int64_t now_us = 100'000'000;

 private:
  SequenceView& Add(Tier tier, int64_t tokens);

  std::deque<SequenceView> views_;
  std::vector<const SequenceView*> resident_;
  std::vector<const SequenceView*> waiting_;
};

SchedulerConfig Config(OffloadPolicy policy);
// The entry of a sequence in a plan; null: it has no rows.
const PlannedWork* FindWork(const StepPlan& plan, uint64_t id);
int SubBatchOf(const StepPlan& plan, uint64_t id);  // -1: none

}  // namespace tandem::gpu_worker
