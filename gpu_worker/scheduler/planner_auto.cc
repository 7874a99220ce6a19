#include <algorithm>
#include <array>
#include <utility>

#include "gpu_worker/scheduler/planner.h"

// Policy auto: which CPU decodes run, in which sub-batch and mode, and how much prefill beside
// them.
namespace tandem::gpu_worker {
namespace {

// Shortest time a step is taken to last, so that rates stay finite when nothing is known.
constexpr double kShortestStepUs = 1e-3;
// Prefill beside CPU decodes is cut again and again; never below the rows.
constexpr int kMostTrims = 8;
constexpr double kTrim = 0.7;
constexpr int64_t kSmallestPrefill = 64;
// Less prefill than that has to be better by this: prompts that wait do not show in a step's rate.
constexpr double kTrimMargin = 1.02;
// Prefill of a step over that of the steady state's.
constexpr double kPace = 1.05;
// Of prefill in two sub-batches, the most that one of them has.
constexpr double kLargestPart = 0.65;
// From here on the device decodes' rows count in A's dense stage.
constexpr double kRowsCount = 1.01;

double Rate(double value, const StepPrediction& prediction) {
  return value / std::max(prediction.total_us, kShortestStepUs);
}

// Counts that are ranked: 1, 2, 3, 5, 8, 12, ...
size_t NextCount(size_t count, size_t last) {
  if (count >= last) {
    return last + 1;
  }
  return std::min(count + std::max<size_t>(1, count / 2), last);
}

}  // namespace

// A layer's time in the long run: unified for an empty B, else the longest of all device work, all
// CPU work and both chains. Orders candidates; the walk decides between the best.
double Planner::SteadyLayerUs(const LayerTerms& a, const LayerTerms& b) const {
  const double device_us = a.device_us() + b.device_us();
  const double cpu_us = a.cpu_decode_us + b.cpu_decode_us;
  const double attend_us = a.prefill_us + a.gpu_decode_us;
  const double move_out_us = a.move_out_us + b.move_out_us;
  const double overlapped_us =
      b.linear_us > 0
          ? std::max({device_us, cpu_us, move_out_us, a.linear_us + a.transfer_us + a.cpu_decode_us,
                      b.linear_us + b.transfer_us + b.cpu_decode_us})
          : std::max(a.linear_us + std::max(attend_us, a.transfer_us + a.cpu_decode_us),
                     move_out_us);
  return overlap_ * overlapped_us +
         (1 - overlap_) * std::max(device_us + cpu_us + move_out_us, overlapped_us);
}

void Planner::SumCpuDecodes() {
  tokens_before_.assign(1, 0);
  entries_before_.assign(1, 0);
  tokens_before_.reserve(cpu_decodes_.size() + 1);
  entries_before_.reserve(cpu_decodes_.size() + 1);
  for (const SequenceView* view : cpu_decodes_) {
    tokens_before_.push_back(tokens_before_.back() + view->total_tokens);
    entries_before_.push_back(entries_before_.back() + state_.cpu.BlocksFor(view->total_tokens));
  }
  costs_.Start(tokens_before_);
}

// The first `begin` to `end` CPU decodes beside `base`.
LayerTerms Planner::TermsWith(const Base& base, bool in_b, size_t begin, size_t end) const {
  const int x = in_b ? 1 : 0;
  const CostMemo::CpuDecodes& decodes = costs_.Of(begin, end);
  LayerTerms terms = base.terms[x];
  terms.linear_us = costs_.LinearUs(static_cast<int64_t>(end - begin) + base.rows[x]);
  terms.cpu_decode_us = decodes.decode_us;
  terms.transfer_us = decodes.transfer_us;
  return terms;
}

// Which counts of the first `count` CPU decodes may go to B, so that both slots hold their part.
// Empty (low above high): none.
std::array<size_t, 2> Planner::SplitRange(size_t count) const {
  const auto rows = static_cast<size_t>(config_.max_cpu_rows_per_slot);
  size_t low = count > rows ? count - rows : 0;
  size_t high = std::min(count, rows);
  // Where one slot holds all their entries, these bound nothing.
  if (const int64_t most = config_.max_cpu_table_entries_per_slot;
      most > 0 && entries_before_[count] > most) {
    const auto in_b = std::upper_bound(entries_before_.begin(), entries_before_.end(), most);
    high = std::min(high, static_cast<size_t>(in_b - entries_before_.begin()) - 1);
    const auto in_a = std::lower_bound(entries_before_.begin(), entries_before_.end(),
                                       entries_before_[count] - most);
    low = std::max(low, static_cast<size_t>(in_a - entries_before_.begin()));
  }
  return {low, high};
}

// The most of the first CPU decodes that one slot, or both, can hold.
size_t Planner::MostCpuDecodes(bool two) const {
  size_t count = cpu_decodes_.size();
  while (count > 0) {
    const auto [low, high] = SplitRange(count);
    if (two ? low <= high : low == 0) {
      return count;
    }
    --count;
  }
  return 0;
}

// How many of the first `count` go to B: where its chain gets as long as A's.
size_t Planner::BestSplit(const Base& base, size_t count) const {
  const auto chain_us = [&](size_t x, size_t begin, size_t end) {
    const CostMemo::CpuDecodes& decodes = costs_.Of(begin, end);
    return costs_.LinearUs(static_cast<int64_t>(end - begin) + base.rows[x]) + decodes.transfer_us +
           decodes.decode_us;
  };
  auto [low, high] = SplitRange(count);
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (chain_us(1, 0, middle) < chain_us(0, middle, count)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The first `count` CPU decodes by what they cost the CPU, in decodes of the list's mean context.
// By number those of short contexts would seem the better bargain; but the long ones have to be
// read all the same, and they come first in the list.
double Planner::MeanCpuDecodes(size_t count) const {
  if (count == 0 || tokens_before_.back() == 0) {
    return static_cast<double>(count);
  }
  return static_cast<double>(cpu_decodes_.size()) * static_cast<double>(tokens_before_[count]) /
         static_cast<double>(tokens_before_.back());
}

double Planner::ValueOf(const Base& base, size_t cpu_decodes) const {
  return value_.Of(static_cast<double>(gpu_decodes_.size()) + MeanCpuDecodes(cpu_decodes),
                   static_cast<double>(base.prefill_rows));
}

// Exact: by the walk.
Planner::Placement Planner::Evaluate(const Base& base, StepMode mode, size_t count) const {
  Placement placement;
  placement.mode = mode;
  placement.count = count;
  const bool two = mode == StepMode::kAsymmetric;
  placement.in_b = two ? BestSplit(base, count) : 0;
  placement.gpu_in_b = base.gpu_in_b;
  placement.halved = base.halved;
  const StepPrediction prediction = predictor_.PredictTerms(
      {mode, StageOrder::kOverlapped, copied_tokens_},
      {TermsWith(base, false, placement.in_b, count), TermsWith(base, true, 0, placement.in_b)},
      state_.corrections);
  placement.rate = Rate(ValueOf(base, count), prediction);
  placement.total_us = prediction.total_us;
  return placement;
}

bool Planner::IsTooSlow(const Placement& placement) const {
  return config_.max_step_us > 0 && placement.total_us > static_cast<double>(config_.max_step_us);
}

// The best count of `mode`, from `at_least` on: ranked by the steady state, then by the walk
// between the best and its neighbours.
Planner::Placement Planner::BestOf(const Base& base, StepMode mode, size_t at_least) const {
  const bool two = mode == StepMode::kAsymmetric;
  const size_t last = MostCpuDecodes(two);
  Placement best;
  best.mode = mode;
  if (last == 0) {
    return best;
  }
  const size_t first = std::clamp<size_t>(at_least, 1, last);
  size_t ranked[3] = {first, first, first};  // before, at and behind the best
  double best_rate = 0;
  size_t before = first;
  bool was_best = false;
  for (size_t count = first; count <= last; count = NextCount(count, last)) {
    if (was_best) {
      ranked[2] = count;
    }
    const size_t in_b = two ? BestSplit(base, count) : 0;
    const double layer_us =
        SteadyLayerUs(TermsWith(base, false, in_b, count), TermsWith(base, true, 0, in_b));
    const double rate = ValueOf(base, count) / std::max(layer_us, kShortestStepUs);
    was_best = rate > best_rate;
    if (was_best) {
      best_rate = rate;
      ranked[0] = before;
      ranked[1] = ranked[2] = count;
    }
    before = count;
  }
  const size_t tried[] = {ranked[1], (ranked[0] + ranked[1]) / 2, (ranked[1] + ranked[2] + 1) / 2,
                          first};
  for (size_t i = 0; i < std::size(tried); ++i) {
    const size_t count = tried[i];
    if (std::find(tried, tried + i, count) != tried + i) {
      continue;  // looked at before
    }
    const Placement placement = Evaluate(base, mode, count);
    if (placement.rate > best.rate && (count == first || !IsTooSlow(placement))) {
      best = placement;
    }
  }
  return best;
}

// Asymmetric. Rows in A cost time as soon as prefill fills it, in B they come with the reading of
// the weights: device decodes may be better off there.
Planner::Placement Planner::BestAsymmetric(const std::vector<Prefill>& prefills, const Base& base,
                                           size_t at_least) const {
  Placement best = BestOf(base, StepMode::kAsymmetric, at_least);
  const size_t decodes = gpu_decodes_.size();
  if (config_.switches.chunk_balancing && base.prefill_rows >= 2 * kSmallestPrefill) {
    const Base halved = BaseOf(Halved(base.prefill_rows), 0);
    if (halved.halved) {
      const Placement placement = BestOf(halved, StepMode::kAsymmetric, at_least);
      best = placement.rate > best.rate ? placement : best;
    }
  }
  const CostModel& model = predictor_.model();
  const bool costs_rows =
      decodes > 0 && base.prefill_rows > 0 &&
      model.LinearUs(base.rows[0]) >
          kRowsCount * model.LinearUs(base.rows[0] - static_cast<int64_t>(decodes));
  for (const size_t in_b : {decodes, decodes / 2}) {
    if (costs_rows && in_b > 0) {
      const Placement placement = BestOf(BaseOf(prefills, in_b), StepMode::kAsymmetric, at_least);
      best = placement.rate > best.rate ? placement : best;
    }
  }
  return best;
}

// Unified or asymmetric; the current one is left only for a gain.
Planner::Placement Planner::BestOffloaded(const std::vector<Prefill>& prefills,
                                          size_t at_least) const {
  const bool has_unified = config_.switches.unified || !config_.switches.asymmetric;
  const Base base = BaseOf(prefills, 0);
  const Placement unified = has_unified ? BestOf(base, StepMode::kUnified, at_least) : Placement();
  const Placement asymmetric =
      config_.switches.asymmetric ? BestAsymmetric(prefills, base, at_least) : Placement();
  const double margin = 1.0 + config_.mode_margin;
  const bool is_asymmetric_now = state_.current_mode == StepMode::kAsymmetric;
  return asymmetric.rate > unified.rate * (is_asymmetric_now ? 1.0 / margin : margin) ? asymmetric
                                                                                      : unified;
}

Planner::Base Planner::BaseOf(const std::vector<Prefill>& prefills, size_t gpu_in_b) const {
  Base base;
  base.gpu_in_b = gpu_in_b;
  const SubBatchLoad a = DeviceLoad(prefills, 0, gpu_in_b);
  const SubBatchLoad b = DeviceLoad(prefills, 1, gpu_in_b);
  base.rows[0] = a.rows;
  base.rows[1] = b.rows;
  base.prefill_rows = a.rows - a.gpu_decodes + b.rows - b.gpu_decodes;
  base.halved = b.rows > b.gpu_decodes;
  base.terms[0] = predictor_.TermsOf(a, state_.corrections);
  base.terms[1] = predictor_.TermsOf(b, state_.corrections);
  return base;
}

// `prefills` cut down to about `rows`, in their order; those that get nothing go. A long prompt's
// chunk was sized before, by how often its context has to be read.
std::vector<Planner::Prefill> Planner::Trimmed(std::vector<Prefill> prefills, int64_t rows) const {
  int64_t left = rows;
  for (Prefill& prefill : prefills) {
    if (!IsHog(*prefill.view)) {
      prefill.chunk = static_cast<int32_t>(std::clamp<int64_t>(left, 0, prefill.chunk));
    }
    left -= prefill.chunk;
  }
  std::erase_if(prefills, [](const Prefill& prefill) { return prefill.chunk <= 0; });
  return prefills;
}

// About `rows` of all prefills, in their order, in both sub-batches: with enough rows in each,
// neither is held up by reading the weights. A prompt is in one of them only; it is cut where
// the halves would differ too much.
std::vector<Planner::Prefill> Planner::Halved(int64_t rows) const {
  const auto wanted = static_cast<double>(rows);
  std::vector<Prefill> prefills;
  int64_t in_a = 0;
  int64_t in_b = 0;
  for (Prefill prefill : prefills_) {
    prefill.in_b = static_cast<double>(in_a) >= (1 - kLargestPart) * wanted;
    int64_t room = rows - in_a - in_b;
    if (!prefill.in_b && static_cast<double>(in_a + prefill.chunk) > kLargestPart * wanted) {
      room = rows / 2 - in_a;
    }
    if (!IsHog(*prefill.view)) {
      prefill.chunk = static_cast<int32_t>(std::min<int64_t>(prefill.chunk, room));
    }
    if (room <= 0 || prefill.chunk <= 0) {
      continue;
    }
    (prefill.in_b ? in_b : in_a) += prefill.chunk;
    prefills.push_back(prefill);
  }
  return prefills;
}

// Prefill beside CPU decodes goes at the pace of the steady state: faster would leave later steps
// without any to hide the CPU's work behind. Where no tier is kept for speed, at the device's own.
std::vector<Planner::Prefill> Planner::PacedPrefills() const {
  if (!CpuTierServes()) {
    return PacedAlone();
  }
  if (!config_.switches.chunk_balancing) {
    return prefills_;
  }
  const double sequences = DeviceConcurrency(state_, Bounds()) + steady_.cpu_decodes;
  const double rows =
      kPace * state_.mix.prompt_rows_per_decode() * DecodesPerStep(state_.mix, sequences, Bounds());
  return Trimmed(prefills_, std::max(static_cast<int64_t>(rows), kSmallestPrefill));
}

// Whether prompts come to their end one after the other even while there are no decodes yet, so
// that decodes of the first run beside the next ones; else all that fit would go on to take turns
// with their decodes. Only where a step of so many rows takes hardly more time for each than the
// largest.
bool Planner::PaceFromTheStart() const {
  constexpr double kGain = 1.1;
  constexpr double kHardlyMore = 1.1;
  const CostModel& model = predictor_.model();
  const int64_t most = std::max<int64_t>(config_.max_num_batched_tokens, 1);
  return steady_.alone_gain > kGain &&
         model.LinearUs(steady_.alone_rows) * static_cast<double>(most) <=
             kHardlyMore * model.LinearUs(most) * static_cast<double>(steady_.alone_rows);
}

// Prefill of a step on the device alone. Where prompts wait for room all the same, the one whose
// turn it is takes the pace that brings the most of them to their end: rows that come with the
// reading of the weights cost little.
std::vector<Planner::Prefill> Planner::PacedAlone() const {
  const auto admitted = static_cast<size_t>(
      std::count_if(prefills_.begin(), prefills_.end(),
                    [](const Prefill& prefill) { return prefill.view->tier == Tier::kNone; }));
  const bool others_wait = state_.waiting.size() > admitted;
  if (!config_.switches.chunk_balancing || !others_wait || CpuTierServes() ||
      (gpu_decodes_.empty() && !PaceFromTheStart())) {
    return prefills_;
  }
  return Trimmed(prefills_, steady_.alone_rows);
}

// The best offloaded step, and in balanced_ its prefill: at most at the steady state's pace, less
// where that leaves neither side waiting for the other.
Planner::Placement Planner::BalancePrefill(size_t at_least) {
  balanced_ = PacedPrefills();
  Placement best = BestOffloaded(balanced_, at_least);
  int64_t rows = 0;
  for (const Prefill& prefill : balanced_) {
    rows += prefill.chunk;
  }
  int64_t best_rows = rows;
  const bool may_trim = config_.switches.chunk_balancing && CpuTierIsFilled();
  for (int i = 0; i < kMostTrims && may_trim && rows > kSmallestPrefill; ++i) {
    rows = std::max(static_cast<int64_t>(static_cast<double>(rows) * kTrim), kSmallestPrefill);
    std::vector<Prefill> prefills = Trimmed(prefills_, rows);
    const Placement placement = BestOffloaded(prefills, at_least);
    if (placement.rate > best.rate * kTrimMargin) {
      best = placement;
      best_rows = rows;
      balanced_ = std::move(prefills);
    } else if (placement.rate < best.rate * 0.9) {
      break;
    }
  }
  if (best.halved) {
    balanced_ = Halved(best_rows);
  }
  return best;
}

// Beside a CPU tier that is filled, no more prefill than an offloaded step would have: a full step
// would hold up the tier's decodes.
void Planner::EmitAlone(std::vector<Prefill> prefills) {
  const bool decodes = !gpu_decodes_.empty() || !cpu_decodes_.empty();
  const bool waits = decodes && CpuTierServes() && CpuTierIsFilled();
  prefills_ = waits ? PacedPrefills() : std::move(prefills);
  CountDeviceProgress();
  EmitCpuDecodes(Placement());
}

void Planner::PlaceAuto() {
  value_ = ValueNow();
  const bool has_device_work = !gpu_decodes_.empty() || !prefills_.empty();
  const bool pays = state_.offload_pays || !config_.switches.guard;
  const size_t aged = CountAged();
  std::vector<Prefill> alone = PacedAlone();
  if (cpu_decodes_.empty() || (!pays && has_device_work && aged == 0)) {
    EmitAlone(std::move(alone));
    return;
  }
  if (!pays && has_device_work) {
    cpu_decodes_.resize(aged);  // only what must not wait any longer
  }
  SumCpuDecodes();
  const size_t at_least = has_device_work ? std::max<size_t>(aged, 1) : cpu_decodes_.size();
  const Base full = BaseOf(alone, 0);
  Placement best = BalancePrefill(at_least);
  if (has_device_work && aged == 0) {
    const StepPrediction predicted =
        predictor_.PredictTerms({StepMode::kGpuOnly, StageOrder::kOverlapped, copied_tokens_},
                                {full.terms[0], {}}, state_.corrections);
    // Where the CPU tier pays in the long run, its decodes run beside prefill even where this step
    // alone gains nothing by them: later ones would have nothing to hide them behind.
    const double entry = steady_.cpu_decodes > 0                     ? 1.0 - config_.mode_margin
                         : state_.current_mode == StepMode::kGpuOnly ? 1.0 + config_.mode_margin
                                                                     : 1.0;
    plan_.gpu_only_value_per_us = Rate(ValueOf(full, 0), predicted);
    if (best.rate <= plan_.gpu_only_value_per_us * entry) {
      best = Placement();
    }
  }
  if (best.count == 0) {
    EmitAlone(std::move(alone));
    return;
  }
  prefills_ = std::move(balanced_);
  CountDeviceProgress();
  EmitCpuDecodes(best);
}

}  // namespace tandem::gpu_worker
