#include "gpu_worker/scheduler/planner.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace tandem::gpu_worker {
namespace {

// Sequences that may move back in a step even where the copies take longer than it.
constexpr int32_t kFewMoves = 4;

}  // namespace

TierRules RulesOf(const SchedulerConfig& config, const SchedulerState& state) {
  TierRules rules;
  rules.cpu_allowed = config.policy != OffloadPolicy::kOff && state.cpu.capacity_blocks > 0 &&
                      config.max_cpu_rows_per_slot > 0 && !state.cpu_given_up;
  rules.gpu_allowed = config.policy != OffloadPolicy::kAllCpu || !rules.cpu_allowed;
  rules.cpu_usable = rules.cpu_allowed && state.cpu_up;
  return rules;
}

Planner::Planner(const SchedulerConfig& config, const Predictor& predictor,
                 const SchedulerState& state, int64_t now_us)
    : config_(config),
      predictor_(predictor),
      state_(state),
      now_us_(now_us),
      rules_(RulesOf(config, state)),
      overlap_(predictor.Overlap(state.corrections)),
      free_gpu_(state.gpu.free_blocks),
      free_cpu_(state.cpu.free_blocks),
      token_budget_(config.max_num_batched_tokens),
      sequence_budget_(config.max_num_seqs),
      costs_(predictor, state.corrections) {}

StepPlan Planner::Run() {
  SortResidents();
  if (config_.policy == OffloadPolicy::kAuto) {
    steady_ = state_.steady.is_known ? state_.steady : Study();
  }
  if (is_neo()) {
    MakeNeoRoom();
  }
  PlanGpuDecodes();
  MakeRoomAhead();
  PlanSwapIns();
  if (rules_.cpu_usable) {
    PlanCpuGrowth();
  }
  PlanPrefills();
  PlaceCpuDecodes();
  return std::move(plan_);
}

void Planner::SortResidents() {
  // With its key beside each pointer: to follow two of them in every comparison takes longer than
  // the rest of sorting.
  struct Keyed {
    decltype(SequenceView::priority) priority;
    decltype(SequenceView::arrival) arrival;
    const SequenceView* view;
  };
  std::vector<Keyed> keyed;
  keyed.reserve(state_.resident.size());
  for (const SequenceView* view : state_.resident) {
    keyed.push_back({view->priority, view->arrival, view});
  }
  std::sort(keyed.begin(), keyed.end(), IsOlder<Keyed>);
  residents_.reserve(keyed.size());
  for (const Keyed& entry : keyed) {
    residents_.push_back({.view = entry.view});
  }
  on_gpu_.reserve(residents_.size());
  on_cpu_.reserve(residents_.size());
  for (Resident& resident : residents_) {
    (resident.view->tier == Tier::kGpu ? on_gpu_ : on_cpu_).push_back(&resident);
  }
  gpu_residents_ = static_cast<int32_t>(on_gpu_.size());
  cpu_residents_ = static_cast<int32_t>(on_cpu_.size());
  for (const Resident* resident : on_cpu_) {
    const int32_t missing =
        state_.cpu.BlocksFor(resident->view->tokens_to_hold()) - resident->view->blocks;
    cpu_growth_ += std::max(missing, 0);
  }
}

void Planner::AddGpuDecode(const SequenceView& view) {
  gpu_decodes_.push_back(&view);
  gpu_tokens_before_.push_back(gpu_tokens_before_.back() + view.total_tokens);
  --token_budget_;
  --sequence_budget_;
}

void Planner::PlanGpuDecodes() {
  std::vector<Resident*> decodes;
  for (Resident* resident : on_gpu_) {
    if (!resident->gone && resident->view->is_decode()) {
      decodes.push_back(resident);
    }
  }
  // Admission keeps residents below both budgets. If there are more all the same, those that were
  // passed over longest come first; growth is still decided oldest first.
  const auto budget = static_cast<size_t>(std::max(std::min(token_budget_, sequence_budget_), 0));
  if (decodes.size() > budget) {
    std::stable_sort(decodes.begin(), decodes.end(), [](const Resident* a, const Resident* b) {
      return a->view->last_progress_step < b->view->last_progress_step;
    });
    decodes.resize(budget);
    std::sort(decodes.begin(), decodes.end(),
              [](const Resident* a, const Resident* b) { return IsOlder(*a->view, *b->view); });
  }
  for (Resident* decode : decodes) {
    if (decode->gone) {
      continue;
    }
    const SequenceView& view = *decode->view;
    const int32_t missing = state_.gpu.BlocksFor(view.total_tokens) - view.blocks;
    if (missing > free_gpu_ && !MakeGpuRoom(*decode, missing)) {
      continue;  // it went itself, or its room comes with the next step
    }
    free_gpu_ -= std::max(missing, 0);
    AddGpuDecode(view);
  }
}

Planner::Resident* Planner::YoungestIn(std::vector<Resident*>& pool, const SequenceView& needy) {
  for (auto it = pool.rbegin(); it != pool.rend(); ++it) {
    if (!(*it)->gone && !IsOlder(*(*it)->view, needy)) {
      return *it;
    }
  }
  return nullptr;
}

// True: `missing` blocks are free now. Moves free theirs only when the step is done, so that an
// abort can leave everything as it was; recomputing frees them at once.
bool Planner::MakeGpuRoom(Resident& needy, int32_t missing) {
  if (!state_.gpu.CanEverHold(needy.view->total_tokens)) {
    EvictFromGpu(needy);
    return false;
  }
  while (free_gpu_ < missing && free_gpu_ + coming_gpu_ < missing) {
    Resident* victim = YoungestIn(on_gpu_, *needy.view);
    if (victim == nullptr) {
      return false;
    }
    EvictFromGpu(*victim);
    if (victim == &needy) {
      return false;
    }
  }
  if (free_gpu_ < missing) {
    coming_gpu_ -= missing - free_gpu_;  // spoken for
    return false;
  }
  return true;
}

bool Planner::CanSwapOut(const SequenceView& view) const {
  return rules_.cpu_usable && view.cached_tokens > 0 &&
         state_.cpu.CanEverHold(view.tokens_to_hold()) &&
         state_.cpu.BlocksFor(view.tokens_to_hold()) <= free_cpu_ - cpu_growth_;
}

void Planner::EvictFromGpu(Resident& victim) {
  const SequenceView& view = *victim.view;
  victim.gone = true;
  evicted_ = true;
  --gpu_residents_;
  if (CanSwapOut(view)) {
    free_cpu_ -= state_.cpu.BlocksFor(view.tokens_to_hold());
    ++cpu_residents_;
    copied_tokens_ += view.cached_tokens;
    coming_gpu_ += view.blocks;
    plan_.moves.push_back({view.id, true});
  } else {
    free_gpu_ += view.blocks;
    plan_.recompute.push_back(view.id);
  }
}

// Moves the youngest out one step before the others lack blocks, so that none of them loses a step
// to waiting for the move.
void Planner::MakeRoomAhead() {
  if (config_.policy != OffloadPolicy::kAuto || !rules_.cpu_usable || evicted_) {
    return;
  }
  int32_t needed = 0;
  for (const SequenceView* view : gpu_decodes_) {
    needed +=
        state_.gpu.BlocksFor(view->total_tokens + 1) - state_.gpu.BlocksFor(view->total_tokens);
  }
  if (needed <= free_gpu_ || gpu_decodes_.size() < 2) {
    return;
  }
  Resident* youngest = nullptr;
  for (Resident* resident : on_gpu_) {
    if (!resident->gone && resident->view->is_decode()) {
      youngest = resident;
    }
  }
  if (youngest == nullptr || youngest->view != gpu_decodes_.back() ||
      !CanSwapOut(*youngest->view)) {
    return;
  }
  const SequenceView& view = *youngest->view;
  free_gpu_ += state_.gpu.BlocksFor(view.total_tokens) - view.blocks;
  gpu_decodes_.pop_back();
  gpu_tokens_before_.pop_back();
  ++token_budget_;
  ++sequence_budget_;
  EvictFromGpu(*youngest);
}

// A free place on the device goes to a waiting prompt, which needs no copy, while the CPU keeps up
// with what it has.
bool Planner::SwapInsWait() const {
  constexpr uint64_t kKeepsUp = 8;  // steps
  if (is_neo() || state_.waiting.empty() || !CpuTierServes() ||
      cpu_residents_ > steady_.cpu_target ||
      !state_.gpu.CanEverHold(state_.waiting.front()->total_tokens)) {
    return false;
  }
  return std::none_of(on_cpu_.begin(), on_cpu_.end(), [this](const Resident* resident) {
    return resident->view->is_decode() &&
           state_.step_index - resident->view->last_progress_step >= kKeepsUp;
  });
}

// Whether copies of so many tokens' KV take no longer than the step's device decodes.
bool Planner::HidesBehindDecodes(int64_t copied_tokens) const {
  const double copy_us = state_.corrections.copies * predictor_.model().CopyUs(copied_tokens);
  const double decodes_us = predictor_.TermsOf(DeviceLoad({}), state_.corrections).device_us();
  return copy_us <= predictor_.Overlap(state_.corrections) * decodes_us;
}

void Planner::PlanSwapIns() {
  const bool moves_back = config_.policy == OffloadPolicy::kAuto || is_neo();
  if (!moves_back || evicted_ || !rules_.cpu_usable || SwapInsWait()) {
    return;
  }
  // What was only pushed out comes back before anybody else gets the room.
  const bool returns = !is_neo() && (!CpuTierServes() || cpu_residents_ > steady_.cpu_target);
  const int32_t most = is_neo() ? config_.max_num_seqs : config_.max_swap_ins_per_step;
  const int64_t residency_us = is_neo() ? 0 : config_.residency_us;
  const int32_t kept = state_.gpu.total_blocks / (returns ? 50 : 10);
  const int32_t rest_of_output =
      state_.gpu.BlocksFor(static_cast<int64_t>(state_.mix.output_tokens / 2));
  int32_t moved = 0;
  for (Resident* resident : on_cpu_) {
    const SequenceView& view = *resident->view;
    if (moved == most || token_budget_ <= 0 || sequence_budget_ <= 0) {
      return;
    }
    const int32_t wanted = state_.gpu.BlocksFor(view.total_tokens);
    // Where everybody there has room for the rest of its output, it will not be pushed out again.
    const bool may_stay = free_gpu_ - wanted >= (gpu_residents_ + 1) * rest_of_output;
    if (!view.is_decode() || (!may_stay && now_us_ - view.last_move_us < residency_us)) {
      continue;
    }
    // Room stays for what runs there: a block each to grow, and a tenth of the pool.
    const int32_t low_watermark =
        is_neo() ? state_.gpu.total_blocks - NeoLowWatermark() : gpu_residents_ + 1 + kept;
    if (!state_.gpu.CanEverHold(view.total_tokens + 1)) {
      continue;
    }
    if (free_gpu_ - wanted < low_watermark) {
      gpu_is_promised_ = returns;
      return;  // oldest first: a younger, shorter one does not overtake
    }
    if (!is_neo() && moved >= kFewMoves &&
        !HidesBehindDecodes(copied_tokens_ + view.cached_tokens)) {
      return;
    }
    resident->gone = true;
    free_gpu_ -= wanted;
    ++gpu_residents_;
    --cpu_residents_;
    copied_tokens_ += view.cached_tokens;
    plan_.moves.push_back({view.id, false});  // runs there from the next step on
    ++moved;
  }
}

// Stable. In linear time where the steps are close together, as they are but for rare cases.
void Planner::SortByDueStep(std::vector<Resident*>* decodes) const {
  constexpr uint64_t kClose = 1024;
  if (decodes->empty()) {
    return;
  }
  struct Due {
    uint64_t step;
    Resident* decode;
  };
  std::vector<Due> due;
  due.reserve(decodes->size());
  for (Resident* decode : *decodes) {
    due.push_back({DueStep(*decode->view), decode});
  }
  const auto is_sooner = [](const Due& a, const Due& b) { return a.step < b.step; };
  const auto [first, last] = std::minmax_element(due.begin(), due.end(), is_sooner);
  const uint64_t begin = first->step;
  if (last->step - begin >= kClose) {
    std::stable_sort(due.begin(), due.end(), is_sooner);
    std::transform(due.begin(), due.end(), decodes->begin(),
                   [](const Due& one) { return one.decode; });
    return;
  }
  std::array<uint32_t, kClose> place{};  // of the next one that is due in the step
  for (const Due& one : due) {
    ++place[one.step - begin];
  }
  std::exclusive_scan(place.begin(), place.end(), place.begin(), uint32_t{0});
  for (const Due& one : due) {
    (*decodes)[place[one.step - begin]++] = one.decode;
  }
}

// Which CPU decodes may run: those that are due first (the published policy: the oldest), as
// far as budgets and slots reach.
std::vector<Planner::Resident*> Planner::CpuDecodeCandidates() {
  std::vector<Resident*> decodes;
  for (Resident* resident : on_cpu_) {
    if (!resident->gone && resident->view->is_decode()) {
      decodes.push_back(resident);
    }
  }
  if (!is_neo()) {
    SortByDueStep(&decodes);
  }
  const bool two_slots = config_.policy == OffloadPolicy::kAsymmetric ||
                         config_.policy == OffloadPolicy::kAuto || is_neo();
  const int64_t slot_rows = int64_t{two_slots ? 2 : 1} * config_.max_cpu_rows_per_slot;
  const int64_t budget = std::min<int64_t>({token_budget_, sequence_budget_, slot_rows});
  decodes.resize(std::min(decodes.size(), static_cast<size_t>(std::max<int64_t>(budget, 0))));
  return decodes;
}

void Planner::PlanCpuGrowth() {
  const std::vector<Resident*> decodes = CpuDecodeCandidates();
  for (Resident* decode : decodes) {
    decode->may_run = true;
  }
  for (Resident* decode : on_cpu_) {
    if (!decode->may_run || decode->gone) {
      continue;
    }
    const int32_t missing = state_.cpu.BlocksFor(decode->view->total_tokens) - decode->view->blocks;
    if (missing > free_cpu_ && !MakeCpuRoom(*decode, missing)) {
      decode->blocked = true;
      continue;
    }
    free_cpu_ -= std::max(missing, 0);
  }
  for (const Resident* decode : decodes) {
    if (!decode->gone && !decode->blocked) {
      cpu_decodes_.push_back(decode->view);
    }
  }
}

bool Planner::MakeCpuRoom(Resident& needy, int32_t missing) {
  if (!state_.cpu.CanEverHold(needy.view->total_tokens)) {
    EvictFromCpu(needy);
    return false;
  }
  while (free_cpu_ < missing) {
    Resident* victim = YoungestIn(on_cpu_, *needy.view);
    if (victim == nullptr) {
      return false;
    }
    EvictFromCpu(*victim);
    if (victim == &needy) {
      return false;
    }
  }
  return true;
}

void Planner::EvictFromCpu(Resident& victim) {
  victim.gone = true;
  evicted_ = true;
  --cpu_residents_;
  free_cpu_ += victim.view->blocks;
  plan_.recompute.push_back(victim.view->id);
}

}  // namespace tandem::gpu_worker
