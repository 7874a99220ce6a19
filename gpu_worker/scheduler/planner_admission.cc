#include <algorithm>

#include "gpu_worker/scheduler/planner.h"

namespace tandem::gpu_worker {
namespace {

// How far down the queue admission looks when only one pool is full.
constexpr size_t kAdmissionLookahead = 128;
// Below this, trimming a chunk further only adds steps.
constexpr int64_t kSmallestTrimmedChunk = 16;
// A long prompt's chunk below this reads its context again for too little; it rather skips steps.
constexpr int64_t kSmallestHogChunk = 64;
// A prompt with more left than this many steps' budgets shares the budget and the time.
constexpr int64_t kHogBudgets = 2;

}  // namespace

bool Planner::IsHog(const SequenceView& view) const {
  return view.tokens_to_hold() - view.cached_tokens >
         kHogBudgets * int64_t{config_.max_num_batched_tokens};
}

// Where the device is busy with the prompts it has, one more only delays their first tokens.
bool Planner::PromptsSaturate() const {
  if (config_.saturating_rows <= 0 || is_neo()) {
    return false;
  }
  int64_t rows = 0;
  for (const Prefill& prefill : prefills_) {
    rows += IsHog(*prefill.view) ? 0 : prefill.chunk;  // that one shares the step
  }
  return rows >= config_.saturating_rows;
}

void Planner::PlanPrefills() {
  // CPU decodes come before prefill takes the budget; in the published policy after it.
  if (!is_neo()) {
    token_budget_ -= static_cast<int32_t>(cpu_decodes_.size());
    sequence_budget_ -= static_cast<int32_t>(cpu_decodes_.size());
  }
  for (const Resident& resident : residents_) {
    const SequenceView& view = *resident.view;
    if (!resident.gone && !view.is_decode() && (view.tier == Tier::kGpu || rules_.cpu_usable)) {
      PlanPrefill(view, view.tier);
    }
  }
  // What was pushed out is older than what waits: the room it left is not given away.
  if (!evicted_) {
    is_neo() ? AdmitNeo() : Admit();
  }
  // What long prompts left for others and nobody took.
  for (Prefill& prefill : prefills_) {
    if (token_budget_ > 0 && IsHog(*prefill.view)) {
      const int64_t wanted = WantedChunk(*prefill.view, prefill.chunk + token_budget_);
      const int32_t before = prefill.chunk;
      prefill.chunk = 0;  // is not there while its larger form is looked at
      const auto chunk = static_cast<int32_t>(TrimToLimits(prefill, wanted));
      prefill.chunk = std::max(chunk, before);
      token_budget_ -= prefill.chunk - before;
    }
  }
}

int64_t Planner::WantedChunk(const SequenceView& view, int64_t budget) const {
  const int64_t end = view.tier == Tier::kNone ? view.total_tokens : view.prefill_end;
  int64_t chunk = std::min(end - view.cached_tokens, budget);
  if (view.cached_tokens < view.chunk_barrier) {
    chunk = std::min(chunk, view.chunk_barrier - view.cached_tokens);
  }
  return chunk;
}

void Planner::PlanPrefill(const SequenceView& view, Tier tier) {
  // A prompt that would take whole steps for itself leaves half of each to those behind it.
  const bool shares = !is_neo() && IsHog(view);
  int64_t chunk = WantedChunk(view, shares ? (token_budget_ + 1) / 2 : token_budget_);
  if (chunk <= 0 || sequence_budget_ <= 0 || PromptsSaturate()) {
    return;
  }
  chunk = TrimToLimits({&view, tier, 0}, chunk);
  if (chunk <= 0) {
    return;
  }
  prefills_.push_back({&view, tier, static_cast<int32_t>(chunk)});
  token_budget_ -= static_cast<int32_t>(chunk);
  --sequence_budget_;
}

// Predicted time of the device work planned so far and a chunk of `prefill`'s prompt.
double Planner::StepUsWith(const Prefill& prefill, int64_t chunk) const {
  StepLoad load;
  load.sub_batch[0] = DeviceLoad(prefills_);
  load.sub_batch[0].rows += static_cast<int64_t>(cpu_decodes_.size()) + chunk;
  load.sub_batch[0].prefills.push_back({chunk, prefill.view->cached_tokens});
  if (prefill.tier == Tier::kCpu) {
    load.sub_batch[0].staged_in_tokens += prefill.view->cached_tokens;
    load.sub_batch[0].staged_out_tokens += chunk;
  }
  return predictor_.Predict(load, state_.corrections).total_us;
}

// A long prompt's context is read, or copied in, again for each chunk: as many rows as take about
// as long as that, lest most of the time goes into it.
int64_t Planner::SmallestHogChunk(const Prefill& prefill, int64_t chunk, double alone_us) const {
  const double one_us = StepUsWith(prefill, 1);
  const double row_us = (StepUsWith(prefill, chunk) - one_us) / static_cast<double>(chunk);
  const double rows = row_us > 0 ? (one_us - alone_us) / row_us : 0.0;
  return std::min(chunk, std::max(kSmallestHogChunk, static_cast<int64_t>(rows)));
}

// The longest chunk beside running decodes that keeps the step within the inter-token target and,
// for a long prompt, lets them keep half of their speed. 0: a long prompt sits this step out; each
// step that it does so lets its next chunk take as much longer.
int64_t Planner::TrimToLimits(const Prefill& prefill, int64_t chunk) const {
  const SequenceView& view = *prefill.view;
  if (is_neo() || (gpu_decodes_.empty() && cpu_decodes_.empty())) {
    return chunk;
  }
  int64_t smallest = std::min(kSmallestTrimmedChunk, chunk);
  double limit_us = config_.max_step_us > 0 ? static_cast<double>(config_.max_step_us) : 0;
  if (IsHog(view)) {
    StepLoad load;
    load.sub_batch[0] = DeviceLoad({});
    load.sub_batch[0].rows += static_cast<int64_t>(cpu_decodes_.size());
    const double alone_us = predictor_.Predict(load, state_.corrections).total_us;
    const uint64_t skipped =
        view.tier == Tier::kNone ? 0 : state_.step_index - view.last_progress_step;
    const double half_speed_us = alone_us * (2.0 + static_cast<double>(skipped));
    if (limit_us <= 0 || limit_us >= half_speed_us) {
      limit_us = half_speed_us;
      smallest = SmallestHogChunk(prefill, chunk, alone_us);
      if (StepUsWith(prefill, smallest) > limit_us) {
        return 0;
      }
    }
  }
  if (limit_us <= 0 || StepUsWith(prefill, chunk) <= limit_us) {
    return chunk;
  }
  int64_t low = smallest;
  int64_t high = chunk;
  while (high - low > kSmallestTrimmedChunk) {
    const int64_t middle = (low + high) / 2;
    (StepUsWith(prefill, middle) <= limit_us ? low : high) = middle;
  }
  return low;
}

Tier Planner::ForcedTier(const SequenceView& view) const {
  const bool gpu_possible = rules_.gpu_allowed && state_.gpu.CanEverHold(view.total_tokens);
  const bool cpu_possible = rules_.cpu_allowed && state_.cpu.CanEverHold(view.total_tokens);
  if (gpu_possible && cpu_possible) {
    return view.home;
  }
  return gpu_possible ? Tier::kGpu : (cpu_possible ? Tier::kCpu : Tier::kNone);
}

// Room for the prompt and the next token, and a watermark that leaves what runs room to grow. An
// empty pool takes anything it can hold.
bool Planner::FitsForAdmission(const SequenceView& view, Tier tier) const {
  const PoolState& pool = tier == Tier::kGpu ? state_.gpu : state_.cpu;
  if (tier == Tier::kCpu && !rules_.cpu_usable) {
    return false;
  }
  const int32_t wanted = std::min(pool.BlocksFor(view.total_tokens + 1), pool.capacity_blocks);
  const int32_t watermark = tier == Tier::kGpu
                                ? pool.Watermark(gpu_residents_, kGpuSequencesABlock)
                                : pool.Watermark(cpu_residents_, kCpuSequencesABlock);
  return (tier == Tier::kGpu ? free_gpu_ : free_cpu_) >= wanted + watermark;
}

void Planner::AdmitTo(const SequenceView& view, Tier tier) {
  PlanPrefill(view, tier);
  if (tier == Tier::kGpu) {
    free_gpu_ -= state_.gpu.BlocksFor(view.total_tokens);
    ++gpu_residents_;
  } else {
    free_cpu_ -= state_.cpu.BlocksFor(view.total_tokens);
    ++cpu_residents_;
  }
}

void Planner::Admit() {
  const int32_t most_residents = std::min(config_.max_num_seqs, config_.max_num_batched_tokens);
  bool gpu_full = false;
  bool cpu_full = !rules_.cpu_usable;
  const size_t last = std::min(state_.waiting.size(), kAdmissionLookahead);
  for (size_t i = 0; i < last && !(gpu_full && cpu_full); ++i) {
    if (token_budget_ <= 0 || sequence_budget_ <= 0 || PromptsSaturate() ||
        gpu_residents_ + cpu_residents_ >= most_residents) {
      return;
    }
    const SequenceView& view = *state_.waiting[i];
    Tier tier = ForcedTier(view);
    const bool is_free_choice = tier == Tier::kNone && rules_.gpu_allowed && rules_.cpu_allowed &&
                                state_.gpu.CanEverHold(view.total_tokens);
    if (is_free_choice) {
      if (!gpu_full && !gpu_is_promised_ && FitsForAdmission(view, Tier::kGpu)) {
        tier = Tier::kGpu;
      } else if (!cpu_full && FitsForAdmission(view, Tier::kCpu) && CpuTierPays()) {
        tier = Tier::kCpu;
      } else {
        return;  // strictly first come, first served
      }
    }
    if (tier == Tier::kNone) {
      continue;  // cannot run now; the engine ends it when that will not change
    }
    bool& is_full = tier == Tier::kGpu ? gpu_full : cpu_full;
    if (is_full || !FitsForAdmission(view, tier)) {
      is_full = true;
      continue;
    }
    AdmitTo(view, tier);
  }
}

}  // namespace tandem::gpu_worker
