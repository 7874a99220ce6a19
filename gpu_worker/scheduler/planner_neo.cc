#include <algorithm>
#include <limits>

#include "gpu_worker/scheduler/planner.h"

// NEO's published policy (arXiv 2411.01142 and the scheduler released with it), over the same
// state, bookkeeping and cost model as everything else: the baseline that Tandem is measured
// against. What it has not, and what keeps promises here: a prompt longer than the step's token
// budget is chunked, and a CPU decode that was passed over very long runs whatever the inequalities
// say.
namespace tandem::gpu_worker {
namespace {

// Shares of the device pool: above the first the youngest moves out; below the second the oldest
// moves back.
constexpr double kHigh = 0.95;
constexpr double kLow = 0.95 * 0.95;
// Rows below which the dense stage takes no less time: prefills are not dropped below it.
constexpr int64_t kSaturatingRows = 128;
constexpr double kStagesPerLayer = 3;  // pre, attend, post

}  // namespace

int32_t Planner::NeoHighWatermark() const {
  return std::max(1, static_cast<int32_t>(kHigh * state_.gpu.total_blocks));
}
int32_t Planner::NeoLowWatermark() const {
  return std::max(1, static_cast<int32_t>(kLow * state_.gpu.total_blocks));
}

// Moves the youngest out while what runs would hold more than the high watermark.
void Planner::MakeNeoRoom() {
  int32_t needed = 0;
  for (const Resident* resident : on_gpu_) {
    const SequenceView& view = *resident->view;
    needed += std::max(view.blocks, state_.gpu.BlocksFor(view.tokens_to_hold()));
  }
  for (auto it = on_gpu_.rbegin(); it != on_gpu_.rend() && needed > NeoHighWatermark(); ++it) {
    const SequenceView& view = *(*it)->view;
    // The last one stays: nobody needs its room.
    if (gpu_residents_ == 1 || !view.is_decode() || !CanSwapOut(view)) {
      return;
    }
    needed -= std::max(view.blocks, state_.gpu.BlocksFor(view.tokens_to_hold()));
    EvictFromGpu(**it);
  }
}

bool Planner::IsNeoAged(const SequenceView& view) const {
  return state_.step_index - view.last_progress_step >= config_.neo_max_passed_over_steps;
}

// Where a waiting prompt goes: to the device below the high watermark, and to the CPU from the
// first one on that does not fit there, as long as the CPU pool could still take all of the
// device's.
Tier Planner::NeoTier(const SequenceView& view, bool cpu_only) const {
  const int32_t gpu_blocks = state_.gpu.BlocksFor(view.total_tokens);
  const int32_t gpu_used = state_.gpu.total_blocks - free_gpu_;
  const bool gpu_fits = state_.gpu.CanEverHold(view.total_tokens) && gpu_blocks <= free_gpu_ &&
                        (gpu_used + gpu_blocks <= NeoHighWatermark() || gpu_used == 0);
  if (gpu_fits && !cpu_only) {
    return Tier::kGpu;
  }
  const int32_t cpu_blocks = state_.cpu.BlocksFor(view.total_tokens + 1);
  const int32_t kept =
      cpu_residents_ == 0
          ? 0
          : state_.cpu.BlocksFor(int64_t{state_.gpu.total_blocks} * state_.gpu.block_tokens);
  const bool cpu_fits = rules_.cpu_usable && state_.cpu.CanEverHold(view.total_tokens) &&
                        cpu_blocks <= free_cpu_ - cpu_growth_ - kept;
  return cpu_fits ? Tier::kCpu : Tier::kNone;
}

// Whole prompts, first come, first served; an upper limit, which placement may lower.
void Planner::AdmitNeo() {
  const int32_t most_residents = std::min(config_.max_num_seqs, config_.max_num_batched_tokens);
  bool cpu_only = false;
  for (const SequenceView* view : state_.waiting) {
    const bool is_chunked = view->total_tokens > config_.max_num_batched_tokens;
    if (token_budget_ <= 0 || sequence_budget_ <= 0 ||
        gpu_residents_ + cpu_residents_ >= most_residents ||
        (!is_chunked && view->total_tokens > token_budget_)) {
      return;
    }
    const Tier tier = NeoTier(*view, cpu_only);
    if (tier == Tier::kNone) {
      return;
    }
    cpu_only = tier == Tier::kCpu;
    AdmitTo(*view, tier);
  }
}

double Planner::NeoDeviceUs(const SubBatchLoad& load) const {
  const LayerTerms terms = predictor_.TermsOf(load, state_.corrections);
  const double launches_us =
      load.rows > 0 ? kStagesPerLayer * predictor_.LaunchUs(state_.corrections) : 0.0;
  return terms.device_us() + launches_us;
}

// Time left on the CPU side of each sub-batch behind the device work that hides it.
std::array<double, 2> Planner::NeoRemains(const std::array<SubBatchLoad, 2>& loads) const {
  const LayerTerms a = predictor_.TermsOf(loads[0], state_.corrections);
  const LayerTerms b = predictor_.TermsOf(loads[1], state_.corrections);
  return {b.linear_us + a.prefill_us + a.gpu_decode_us - a.transfer_us - a.cpu_decode_us,
          a.linear_us - b.transfer_us - b.cpu_decode_us};
}

// Fills both sub-batches with CPU decodes, each into the one with more time left, while both keep
// some; keeps in cpu_decodes_ only those that were taken.
void Planner::SplitNeo(std::array<SubBatchLoad, 2>& loads) {
  const bool has_device_work = loads[0].rows > 0;
  std::vector<const SequenceView*> taken;
  int64_t entries[2] = {0, 0};
  int64_t too_long = std::numeric_limits<int64_t>::max();
  size_t next = 1;
  in_b_.clear();
  for (const SequenceView* view : cpu_decodes_) {
    if (token_budget_ <= 0 || sequence_budget_ <= 0 ||
        !SlotHasRoom(loads[next], entries[next], *view)) {
      break;
    }
    const bool is_aged = IsNeoAged(*view);
    if (view->total_tokens >= too_long && !is_aged) {
      continue;
    }
    const SubBatchLoad before = loads[next];
    AddCpuDecode(*view, &loads[next]);
    const std::array<double, 2> left = NeoRemains(loads);
    // Beside nothing else, there is nothing to hide behind: all run.
    if (has_device_work && !is_aged && std::min(left[0], left[1]) < 0) {
      loads[next] = before;
      too_long = view->total_tokens;
      continue;
    }
    entries[next] += state_.cpu.BlocksFor(view->total_tokens);
    taken.push_back(view);
    in_b_.push_back(next == 1);
    --token_budget_;
    --sequence_budget_;
    next = has_device_work ? (left[1] > left[0] ? 1 : 0) : 1 - next;
  }
  cpu_decodes_ = std::move(taken);
}

// How many prefills stay. Pipelined: the last ones go while the CPU would idle all the same; else
// those for the CPU go. Neither drops below what saturates the dense stage, nor a prompt under way.
size_t Planner::TrimNeoPrefills(const std::array<SubBatchLoad, 2>& loads, bool pipelined) const {
  std::array<SubBatchLoad, 2> left = loads;
  size_t count = prefills_.size();
  while (count > 0) {
    const Prefill& last = prefills_[count - 1];
    if (last.view->tier != Tier::kNone || (!pipelined && last.tier == Tier::kGpu)) {
      break;
    }
    left[0].rows -= last.chunk;
    left[0].prefills.pop_back();
    if (left[0].rows < kSaturatingRows) {
      break;
    }
    const std::array<double, 2> remains = NeoRemains(left);
    if (pipelined && std::min(remains[0], remains[1]) < 0) {
      break;
    }
    --count;
  }
  return count;
}

// Compares the published modes: one batch on the device alone, or two sub-batches, by sequences per
// device time.
void Planner::PlaceNeo() {
  std::array<SubBatchLoad, 2> loads = {DeviceLoad(prefills_), {}};
  const std::vector<Prefill> all = prefills_;
  const bool has_device_work = loads[0].rows > 0;
  const bool has_aged = std::any_of(cpu_decodes_.begin(), cpu_decodes_.end(),
                                    [this](const auto* view) { return IsNeoAged(*view); });
  const size_t sequential = TrimNeoPrefills(loads, false);
  SplitNeo(loads);
  const size_t pipelined = TrimNeoPrefills(loads, true);

  prefills_.resize(sequential);
  const double alone_us = NeoDeviceUs(DeviceLoad(prefills_));
  const double alone = static_cast<double>(gpu_decodes_.size() + sequential);
  prefills_ = all;
  prefills_.resize(pipelined);
  SubBatchLoad a = DeviceLoad(prefills_);
  a.rows += loads[0].cpu_decodes;
  const double both_us = NeoDeviceUs(a) + NeoDeviceUs(loads[1]);
  const double both = static_cast<double>(gpu_decodes_.size() + pipelined + cpu_decodes_.size());
  const bool two =
      !cpu_decodes_.empty() && (!has_device_work || has_aged || both * alone_us > alone * both_us);
  if (!two) {
    prefills_ = all;
    prefills_.resize(sequential);
  }
  CountDeviceProgress();
  Placement placement;
  placement.mode = StepMode::kAsymmetric;
  placement.count = two ? cpu_decodes_.size() : 0;
  EmitCpuDecodes(placement);
}

}  // namespace tandem::gpu_worker
