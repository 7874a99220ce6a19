#include "tests/gpu_worker/scheduler/state_builder.h"

#include "gpu_worker/cost_model/cost_model.h"

namespace tandem::gpu_worker {

MeasuredRates SteadyRates() {
  MeasuredRates rates;
  rates.num_layers = 20;
  rates.weight_bytes = 2e9;
  rates.memory_bytes_per_us = 2e5;
  rates.flops_per_us = 2e7;
  rates.flops_per_token = 2e9;
  rates.attention_bytes_per_us = 1.6e5;
  rates.cpu_attention_bytes_per_us = 4e4;
  rates.copy_bytes_per_us = 1.2e4;
  rates.launch_us = 5;
  rates.kv_bytes_per_token_layer = 4096;
  rates.cpu_kv_bytes_per_token_layer = 4096;
  rates.overlap = 1;
  return rates;
}

SchedulerConfig Config(OffloadPolicy policy) {
  SchedulerConfig config;
  config.policy = policy;
  config.max_num_seqs = 64;
  config.max_num_batched_tokens = 512;
  config.max_cpu_rows_per_slot = 32;
  config.max_cpu_table_entries_per_slot = 1024;
  return config;
}

StateBuilder::StateBuilder() {
  state.gpu = {64, 64, 64, 16};
  state.cpu = {16, 16, 16, 128};
  state.cpu_up = true;
  state.step_index = 1000;
}

SequenceView& StateBuilder::Add(Tier tier, int64_t tokens) {
  SequenceView view;
  view.id = views_.size() + 1;
  view.arrival = view.id;
  view.tier = tier;
  view.total_tokens = tokens;
  view.last_progress_step = state.step_index - 1;
  if (tier != Tier::kNone) {
    PoolState& pool = tier == Tier::kGpu ? state.gpu : state.cpu;
    view.blocks = pool.BlocksFor(tokens);
    pool.free_blocks -= view.blocks;
  }
  views_.push_back(view);
  return views_.back();
}

uint64_t StateBuilder::GpuDecode(int64_t tokens) {
  SequenceView& view = Add(Tier::kGpu, tokens);
  view.cached_tokens = tokens - 1;
  view.prefill_end = tokens - 1;
  // The block of the pending token is the planner's to reserve.
  const int32_t held = state.gpu.BlocksFor(tokens - 1);
  state.gpu.free_blocks += view.blocks - held;
  view.blocks = held;
  return view.id;
}

uint64_t StateBuilder::CpuDecode(int64_t tokens) {
  SequenceView& view = Add(Tier::kCpu, tokens);
  view.cached_tokens = tokens - 1;
  view.prefill_end = tokens - 1;
  const int32_t held = state.cpu.BlocksFor(tokens - 1);
  state.cpu.free_blocks += view.blocks - held;
  view.blocks = held;
  return view.id;
}

uint64_t StateBuilder::GpuPrefill(int64_t prompt, int64_t done) {
  SequenceView& view = Add(Tier::kGpu, prompt);
  view.cached_tokens = done;
  view.prefill_end = prompt;
  return view.id;
}

uint64_t StateBuilder::CpuPrefill(int64_t prompt, int64_t done) {
  SequenceView& view = Add(Tier::kCpu, prompt);
  view.cached_tokens = done;
  view.prefill_end = prompt;
  return view.id;
}

uint64_t StateBuilder::Waiting(int64_t prompt) { return Add(Tier::kNone, prompt).id; }

const SchedulerState& StateBuilder::Build() {
  resident_.clear();
  waiting_.clear();
  for (const SequenceView& view : views_) {
    (view.tier == Tier::kNone ? waiting_ : resident_).push_back(&view);
  }
  state.resident = resident_;
  state.waiting = waiting_;
  return state;
}

StepPlan StateBuilder::Plan(const SchedulerConfig& config, const MeasuredRates& rates) {
  return Scheduler(config, MakeRooflineCostModel(rates)).Plan(Build(), now_us);
}

const PlannedWork* FindWork(const StepPlan& plan, uint64_t id) {
  for (const auto& sub_batch : plan.sub_batch) {
    for (const PlannedWork& work : sub_batch) {
      if (work.sequence_id == id) {
        return &work;
      }
    }
  }
  return nullptr;
}

int SubBatchOf(const StepPlan& plan, uint64_t id) {
  for (int x = 0; x < 2; ++x) {
    for (const PlannedWork& work : plan.sub_batch[x]) {
      if (work.sequence_id == id) {
        return x;
      }
    }
  }
  return -1;
}

}  // namespace tandem::gpu_worker
