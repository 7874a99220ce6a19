#include <algorithm>
#include <array>

#include "gpu_worker/scheduler/planner.h"

namespace tandem::gpu_worker {
namespace {

// Shortest time a step is taken to last, so that rates stay finite when nothing is known.
constexpr double kShortestStepUs = 1e-3;

double Rate(double progress, const StepPrediction& prediction) {
  return progress / std::max(prediction.total_us, kShortestStepUs);
}

// Counts that are tried: all small ones, then in steps that grow with the count.
size_t NextCount(size_t count, size_t last) {
  if (count >= last) {
    return last + 1;
  }
  return std::min(count + std::max<size_t>(1, count / 8), last);
}

void AddCpuDecode(const SequenceView& view, SubBatchLoad* load) {
  ++load->rows;
  ++load->cpu_decodes;
  load->cpu_context_tokens += view.total_tokens;
}

}  // namespace

SubBatchLoad Planner::DeviceLoad() const {
  SubBatchLoad load;
  load.gpu_decodes = static_cast<int64_t>(gpu_decodes_.size());
  for (const SequenceView* view : gpu_decodes_) {
    load.gpu_context_tokens += view->total_tokens;
  }
  load.rows = load.gpu_decodes;
  for (const Prefill& prefill : prefills_) {
    load.rows += prefill.chunk;
    load.prefills.push_back({prefill.chunk, prefill.view->cached_tokens});
    if (prefill.tier == Tier::kCpu) {
      load.staged_tokens += prefill.view->cached_tokens + prefill.chunk;
    }
  }
  return load;
}

void Planner::PlaceCpuDecodes() {
  device_progress_ = static_cast<double>(gpu_decodes_.size());
  for (const SequenceView* view : gpu_decodes_) {
    plan_.sub_batch[0].push_back({view->id, Tier::kGpu, false, 1});
  }
  for (const Prefill& prefill : prefills_) {
    device_progress_ += static_cast<double>(prefill.chunk) /
                        static_cast<double>(std::max<int64_t>(prefill.view->tokens_to_hold(), 1));
  }
  in_b_.assign(cpu_decodes_.size(), false);
  config_.policy == OffloadPolicy::kAuto ? PlaceAuto() : PlaceForced();
  for (const Prefill& prefill : prefills_) {
    plan_.sub_batch[0].push_back({prefill.view->id, prefill.tier, true, prefill.chunk});
  }
}

bool Planner::SlotHasRoom(const SubBatchLoad& load, int64_t entries,
                          const SequenceView& view) const {
  const int64_t more = state_.cpu.BlocksFor(view.total_tokens);
  return load.cpu_decodes < config_.max_cpu_rows_per_slot &&
         (config_.max_cpu_table_entries_per_slot <= 0 ||
          entries + more <= config_.max_cpu_table_entries_per_slot);
}

// Every CPU decode that the slots hold; asymmetric: shared evenly, the first to B.
void Planner::PlaceForced() {
  const bool is_asymmetric = config_.policy == OffloadPolicy::kAsymmetric;
  SubBatchLoad load[2] = {DeviceLoad(), {}};
  int64_t entries[2] = {0, 0};
  size_t count = 0;
  for (const SequenceView* view : cpu_decodes_) {
    const int x = is_asymmetric && count % 2 == 0 ? 1 : 0;
    if (!SlotHasRoom(load[x], entries[x], *view)) {
      break;
    }
    AddCpuDecode(*view, &load[x]);
    entries[x] += state_.cpu.BlocksFor(view->total_tokens);
    in_b_[count] = x == 1;
    ++count;
  }
  EmitCpuDecodes(is_asymmetric ? StepMode::kAsymmetric : StepMode::kUnified, count);
}

void Planner::EmitCpuDecodes(StepMode mode, size_t count) {
  SubBatchLoad device_load = DeviceLoad();
  StepLoad load;
  load.copied_gpu_tokens = copied_tokens_;
  load.sub_batch[0] = device_load;
  plan_.gpu_only_progress_per_us =
      Rate(device_progress_, predictor_.Predict(load, state_.corrections));
  load.mode = count == 0 ? StepMode::kGpuOnly : mode;
  for (size_t i = 0; i < count; ++i) {
    const int x = load.mode == StepMode::kAsymmetric && in_b_[i] ? 1 : 0;
    AddCpuDecode(*cpu_decodes_[i], &load.sub_batch[x]);
    plan_.sub_batch[x].push_back({cpu_decodes_[i]->id, Tier::kCpu, false, 1});
  }
  plan_.mode = load.mode;
  plan_.progress = device_progress_ + static_cast<double>(count);
  plan_.predicted = predictor_.Predict(load, state_.corrections);
}

size_t Planner::CountAged() const {
  size_t aged = 0;  // the list begins with those passed over longest
  while (aged < cpu_decodes_.size() && state_.step_index - cpu_decodes_[aged]->last_progress_step >=
                                           config_.max_passed_over_steps) {
    ++aged;
  }
  return aged;
}

void Planner::PlaceAuto() {
  const bool has_device_work = !gpu_decodes_.empty() || !prefills_.empty();
  const size_t aged = CountAged();
  if (cpu_decodes_.empty() || (!state_.offload_pays && has_device_work && aged == 0)) {
    EmitCpuDecodes(StepMode::kGpuOnly, 0);
    return;
  }
  const SubBatchLoad base = DeviceLoad();
  if (!state_.offload_pays && has_device_work) {
    cpu_decodes_.resize(aged);  // only what must not wait any longer
  }
  const size_t at_least = has_device_work ? std::max<size_t>(aged, 1) : cpu_decodes_.size();
  const Placement unified = BestUnified(base, at_least);
  const Placement asymmetric = BestAsymmetric(base, at_least);
  Placement best = unified;
  const bool is_asymmetric_now = state_.current_mode == StepMode::kAsymmetric;
  const double margin = 1.0 + config_.mode_margin;
  if (asymmetric.rate > unified.rate * (is_asymmetric_now ? 1.0 / margin : margin)) {
    best = asymmetric;
  }
  if (has_device_work && aged == 0) {
    StepLoad load;
    load.sub_batch[0] = base;
    const double device_rate = Rate(device_progress_, predictor_.Predict(load, state_.corrections));
    const double entry = state_.current_mode == StepMode::kGpuOnly ? margin : 1.0;
    if (best.rate <= device_rate * entry) {
      best = Placement();
    }
  }
  EmitCpuDecodes(best.mode, best.count);
}

Planner::Placement Planner::BestUnified(const SubBatchLoad& base, size_t at_least) const {
  Placement best;
  best.mode = StepMode::kUnified;
  SubBatchLoad load = base;
  int64_t entries = 0;
  size_t limit = 0;
  while (limit < cpu_decodes_.size() && SlotHasRoom(load, entries, *cpu_decodes_[limit])) {
    entries += state_.cpu.BlocksFor(cpu_decodes_[limit]->total_tokens);
    AddCpuDecode(*cpu_decodes_[limit], &load);
    ++limit;
  }
  load = base;
  const LayerTerms base_terms = predictor_.TermsOf(base, state_.corrections);
  size_t placed = 0;
  for (size_t count = std::min(at_least, limit); count > 0 && count <= limit;
       count = NextCount(count, limit)) {
    for (; placed < count; ++placed) {
      AddCpuDecode(*cpu_decodes_[placed], &load);
    }
    SubBatchLoad cpu_part = load;
    cpu_part.prefills.clear();
    cpu_part.staged_tokens = 0;
    LayerTerms terms = predictor_.TermsOf(cpu_part, state_.corrections);
    terms.prefill_us = base_terms.prefill_us;
    const double rate =
        Rate(device_progress_ + static_cast<double>(count),
             predictor_.PredictTerms(StepMode::kUnified, {terms, {}}, 0, state_.corrections));
    if (rate > best.rate) {
      best.count = count;
      best.rate = rate;
    }
  }
  return best;
}

// The sub-batch in which one more CPU decode leaves the shorter step: the longest of all device
// work, all CPU work, and either chain of dense stage, transfer and CPU attention.
bool Planner::BelongsInB(const SubBatchLoad& a, const SubBatchLoad& b,
                         const SequenceView& view) const {
  const auto layer_us = [this](const SubBatchLoad& x, const SubBatchLoad& y) {
    const LayerTerms s = predictor_.TermsOf(x, state_.corrections);
    const LayerTerms t = predictor_.TermsOf(y, state_.corrections);
    const double device_us = s.linear_us + s.gpu_decode_us + t.linear_us;
    const double cpu_us = s.cpu_decode_us + t.cpu_decode_us;
    return std::max({device_us, cpu_us, s.linear_us + s.transfer_us + s.cpu_decode_us,
                     t.linear_us + t.transfer_us + t.cpu_decode_us});
  };
  SubBatchLoad more_a = a;
  AddCpuDecode(view, &more_a);
  SubBatchLoad more_b = b;
  AddCpuDecode(view, &more_b);
  return layer_us(a, more_b) <= layer_us(more_a, b);
}

Planner::Placement Planner::BestAsymmetric(const SubBatchLoad& base, size_t at_least) {
  Placement best;
  best.mode = StepMode::kAsymmetric;
  const LayerTerms base_terms = predictor_.TermsOf(base, state_.corrections);
  SubBatchLoad a = base;
  a.prefills.clear();
  a.staged_tokens = 0;
  SubBatchLoad b;
  int64_t entries[2] = {0, 0};
  size_t next = std::min(at_least, cpu_decodes_.size());
  for (size_t i = 0; i < cpu_decodes_.size(); ++i) {
    const SequenceView& view = *cpu_decodes_[i];
    const bool a_has_room = SlotHasRoom(a, entries[0], view);
    const bool b_has_room = SlotHasRoom(b, entries[1], view);
    if (!a_has_room && !b_has_room) {
      break;
    }
    const bool into_b = b_has_room && (!a_has_room || BelongsInB(a, b, view));
    in_b_[i] = into_b;
    AddCpuDecode(view, into_b ? &b : &a);
    entries[into_b ? 1 : 0] += state_.cpu.BlocksFor(view.total_tokens);
    if (i + 1 != next) {
      continue;
    }
    next = NextCount(next, cpu_decodes_.size());
    LayerTerms a_terms = predictor_.TermsOf(a, state_.corrections);
    a_terms.prefill_us = base_terms.prefill_us;
    const LayerTerms b_terms = predictor_.TermsOf(b, state_.corrections);
    const double rate = Rate(
        device_progress_ + static_cast<double>(i + 1),
        predictor_.PredictTerms(StepMode::kAsymmetric, {a_terms, b_terms}, 0, state_.corrections));
    if (rate > best.rate) {
      best.count = i + 1;
      best.rate = rate;
    }
  }
  return best;
}

}  // namespace tandem::gpu_worker
