#include <algorithm>

#include "gpu_worker/scheduler/planner.h"

namespace tandem::gpu_worker {
namespace {

// How far down the queue admission looks when only one pool is full.
constexpr size_t kAdmissionLookahead = 128;
// A CPU decode has to add this much more than its share of time, else it waits for device room.
constexpr double kAdmissionMargin = 1.05;
// Below this, trimming a chunk further only adds steps.
constexpr int64_t kSmallestTrimmedChunk = 16;

}  // namespace

void Planner::PlanPrefills() {
  // CPU decodes come before prefill takes the budget.
  token_budget_ -= static_cast<int32_t>(cpu_decodes_.size());
  sequence_budget_ -= static_cast<int32_t>(cpu_decodes_.size());
  for (const Resident& resident : residents_) {
    const SequenceView& view = *resident.view;
    if (!resident.gone && !view.is_decode() && (view.tier == Tier::kGpu || rules_.cpu_usable)) {
      PlanPrefill(view, view.tier);
    }
  }
  // What was pushed out is older than what waits: the room it left is not given away.
  if (!evicted_) {
    Admit();
  }
}

void Planner::PlanPrefill(const SequenceView& view, Tier tier) {
  const int64_t end = view.tier == Tier::kNone ? view.total_tokens : view.prefill_end;
  int64_t chunk = std::min<int64_t>(end - view.cached_tokens, token_budget_);
  if (view.cached_tokens < view.chunk_barrier) {
    chunk = std::min(chunk, view.chunk_barrier - view.cached_tokens);
  }
  if (chunk <= 0 || sequence_budget_ <= 0) {
    return;
  }
  chunk = TrimToStepTarget(view, chunk);
  prefills_.push_back({&view, tier, static_cast<int32_t>(chunk)});
  token_budget_ -= static_cast<int32_t>(chunk);
  --sequence_budget_;
}

int64_t Planner::TrimToStepTarget(const SequenceView& view, int64_t chunk) const {
  if (config_.max_step_us <= 0 || (gpu_decodes_.empty() && cpu_decodes_.empty())) {
    return chunk;
  }
  StepLoad load;
  load.sub_batch[0] = DeviceLoad();
  load.sub_batch[0].rows += static_cast<int64_t>(cpu_decodes_.size());
  const int64_t rows = load.sub_batch[0].rows;
  load.sub_batch[0].prefills.push_back({});
  while (chunk > kSmallestTrimmedChunk) {
    load.sub_batch[0].rows = rows + chunk;
    load.sub_batch[0].prefills.back() = {chunk, view.cached_tokens};
    if (predictor_.Predict(load, state_.corrections).total_us <=
        static_cast<double>(config_.max_step_us)) {
      break;
    }
    chunk = std::max(chunk / 2, kSmallestTrimmedChunk);
  }
  return chunk;
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
  const int32_t residents = tier == Tier::kGpu ? gpu_residents_ : (cpu_residents_ + 3) / 4;
  const int32_t watermark = residents == 0 ? 0 : residents + pool.total_blocks / 50;
  return (tier == Tier::kGpu ? free_gpu_ : free_cpu_) >= wanted + watermark;
}

// Whether more tokens per second come out when waiting sequences decode on the CPU beside those
// that run, rather than wait for room on the device. Asked for one and for several at once,
// because the first pays for what the others share.
bool Planner::CpuTierPays(const SequenceView& view) const {
  SubBatchLoad load;
  for (const Resident& resident : residents_) {
    const bool on_cpu = resident.view->tier == Tier::kCpu;
    (on_cpu ? load.cpu_decodes : load.gpu_decodes) += resident.gone ? 0 : 1;
    (on_cpu ? load.cpu_context_tokens : load.gpu_context_tokens) +=
        resident.gone ? 0 : resident.view->total_tokens;
  }
  for (const Prefill& prefill : prefills_) {
    if (prefill.view->tier == Tier::kNone) {
      const bool to_cpu = prefill.tier == Tier::kCpu;
      (to_cpu ? load.cpu_decodes : load.gpu_decodes) += 1;
      (to_cpu ? load.cpu_context_tokens : load.gpu_context_tokens) += prefill.view->total_tokens;
    }
  }
  const auto running = load.gpu_decodes + load.cpu_decodes;
  if (running == 0) {
    return true;
  }
  const auto total_us = [&] {
    load.rows = load.gpu_decodes + load.cpu_decodes;
    const LayerTerms terms = predictor_.TermsOf(load, state_.corrections);
    return predictor_.PredictTerms(StepMode::kUnified, {terms, {}}, 0, state_.corrections).total_us;
  };
  const double before_us = total_us();
  const auto most = std::min<int64_t>(static_cast<int64_t>(state_.waiting.size()),
                                      config_.max_cpu_rows_per_slot - load.cpu_decodes);
  int64_t added = 0;
  for (int64_t step = 1; added + step <= most; step *= 2) {
    added += step;
    load.cpu_decodes += step;
    load.cpu_context_tokens += step * view.total_tokens;
    const double more_us = total_us() - before_us;
    if (static_cast<double>(added) * before_us >=
        kAdmissionMargin * more_us * static_cast<double>(running)) {
      return true;
    }
  }
  return false;
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
    if (token_budget_ <= 0 || sequence_budget_ <= 0 ||
        gpu_residents_ + cpu_residents_ >= most_residents) {
      return;
    }
    const SequenceView& view = *state_.waiting[i];
    Tier tier = ForcedTier(view);
    const bool is_free_choice = tier == Tier::kNone && rules_.gpu_allowed && rules_.cpu_allowed &&
                                state_.gpu.CanEverHold(view.total_tokens);
    if (is_free_choice) {
      if (!gpu_full && FitsForAdmission(view, Tier::kGpu)) {
        tier = Tier::kGpu;
      } else if (!cpu_full && state_.offload_pays && FitsForAdmission(view, Tier::kCpu) &&
                 CpuTierPays(view)) {
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
