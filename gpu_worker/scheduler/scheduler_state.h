#pragma once

#include <cstdint>
#include <span>

#include "gpu_worker/cost_model/correction.h"
#include "gpu_worker/kv/block_pool.h"
#include "gpu_worker/pipeline/step_mode.h"

namespace tandem::gpu_worker {

// What the scheduler knows of one sequence. Plain value.
struct SequenceView {
  uint64_t id = 0;
  int32_t priority = 0;  // lower first
  uint64_t arrival = 0;  // order of submission; lower is older
  Tier tier = Tier::kNone;
  Tier home = Tier::kNone;    // forced policies: where it has to live; kNone: the planner decides
  int64_t total_tokens = 0;   // known: prompt and generated
  int64_t cached_tokens = 0;  // of them, those whose KV is in the cache
  int64_t prefill_end = 0;    // tokens known when it was admitted: below it rows are prefill
  int64_t chunk_barrier = 0;  // a prefill chunk that starts below it ends there at the latest
  int32_t blocks = 0;         // held in `tier`
  int64_t last_move_us = 0;
  uint64_t last_progress_step = 0;

  bool is_decode() const { return tier != Tier::kNone && cached_tokens >= prefill_end; }
  // Of the pool's tokens: all known ones and, while it is prefilled, the whole prompt at once.
  int64_t tokens_to_hold() const { return total_tokens > prefill_end ? total_tokens : prefill_end; }
};

// First come, first served among equals of priority. Of views, or of what holds their keys.
template <typename T>
bool IsOlder(const T& a, const T& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.arrival < b.arrival;
}

struct PoolState {
  int32_t capacity_blocks = 0;  // most that one sequence can ever hold
  int32_t total_blocks = 0;
  int32_t free_blocks = 0;
  int32_t block_tokens = 1;

  int32_t BlocksFor(int64_t tokens) const {
    return static_cast<int32_t>((tokens + block_tokens - 1) / block_tokens);
  }
  bool CanEverHold(int64_t tokens) const { return BlocksFor(tokens) <= capacity_blocks; }
  // Kept free at admission: a block for every `sequences_a_block` of those that hold some already,
  // and 2%. An empty pool takes anything.
  int32_t Watermark(int32_t residents, int32_t sequences_a_block) const {
    return residents == 0
               ? 0
               : (residents + sequences_a_block - 1) / sequences_a_block + total_blocks / 50;
  }
};
// Sequences for which admission keeps a block: fewer recomputed ones for the first, more at a time
// for the second.
inline constexpr int32_t kGpuSequencesABlock = 2;
inline constexpr int32_t kCpuSequencesABlock = 4;

// What requests are like, on average.
struct WorkloadMix {
  double prompt_tokens = 256;
  double output_tokens = 128;
  double prompt_variance = 0;  // of the prompts' tokens
  // That the device's pool held while the next one waited for room there; 0: not seen yet. Less
  // than its tokens allow on average where long prompts wait for a room that short ones leave.
  double device_sequences = 0;
  // Of the sequences that ended, the share whose place a new one took soon: 0 for a load that came
  // at once, 1 where it goes on.
  double replaced = 0;

  double prompt_rows_per_decode() const {
    return output_tokens > 1 ? prompt_tokens / output_tokens : prompt_tokens;
  }
};

// Values of one decode and of one prefill row, in microseconds: what they cost in the best steady
// state that this mix of requests allows, a decode everything that its share of prefill does not. A
// step's value over its time is then 1 in that state, and the step with the most value per time is
// the one that brings requests to their end fastest. Counting decodes and prompts by number instead
// would call steps full of cheap decodes fast although the prompts behind them wait.
struct WorkValue {
  double decode_us = 1;
  double row_us = 0;

  double Of(double decodes, double prefill_rows) const {
    return decodes * decode_us + prefill_rows * row_us;
  }
};

// What follows from mix, pools and costs alone; it changes slowly.
struct SteadyState {
  bool is_known = false;
  WorkValue ramp;    // while the CPU tier is not filled: a prefill row is worth what it costs
  WorkValue filled;  // then: what one more row costs in the steady state, nothing where the CPU is
                     // the limit
  double bare_decode_us = 0;  // of a step with as many decodes and no prefill, for each
  double gain = 1;            // of the CPU tier: throughput with it over throughput without
  bool surely_pays = false;   // even over a device whose steps always mix prefill and decodes
  double cpu_decodes = 0;     // in a step of the best state
  int64_t alone_rows = 0;  // of prefill in a step of the device alone, where prompts wait for room
  double alone_gain = 1;   // of that pace over prefilling at once what fits
  int32_t cpu_target = 0;  // sequences that the CPU tier is given for speed
};

// Everything a plan depends on besides the time. The spans point to values that live through the
// call.
struct SchedulerState {
  PoolState gpu;
  PoolState cpu;
  bool cpu_up = false;        // a step may touch the CPU pool
  bool cpu_given_up = false;  // away past its bound: plan as if there were no CPU tier
  std::span<const SequenceView* const> resident;  // hold blocks; any order
  std::span<const SequenceView* const> waiting;   // oldest first
  uint64_t step_index = 0;
  StepMode current_mode = StepMode::kGpuOnly;
  bool offload_pays = true;  // the guard's verdict
  Corrections corrections;
  WorkloadMix mix;
  SteadyState steady;  // of Scheduler::Study a short while ago; unknown: made for this plan
};

}  // namespace tandem::gpu_worker
