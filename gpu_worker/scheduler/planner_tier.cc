#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "gpu_worker/scheduler/planner.h"

// The steady state of this mix of requests: what work is worth in it, and how many sequences the
// CPU tier shall hold.
namespace tandem::gpu_worker {
namespace {

// Throughput has to grow by this for waiting sequences to go to the CPU at all.
constexpr double kAdmissionMargin = 1.03;
// And by so much of the standard error of the mean prompt of the requests in sight, as long as the
// tier is empty: of a few that differ a lot, what holds on average rarely holds.
constexpr double kUneven = 0.6;
// Of the best throughput: among counts that reach it the largest is aimed at, so that the CPU never
// runs dry: where device and CPU are exactly balanced, every variation makes one of them wait.
constexpr double kNearlyBest = 0.96;
// A tier whose steps take longer than both this and so many times those of the smallest that is
// nearly as good is too large: where one more sequence brings next to nothing, all it does is to
// let the others wait for their tokens.
constexpr double kLongStepUs = 250e3;
constexpr double kLongStep = 1.25;
// Share of what the CPU tier is given from which on it counts as filled.
constexpr double kFilled = 0.5;
// Sequences that are still prefilled, above those that decode.
constexpr double kInPrefill = 1.25;
constexpr int32_t kMoreInPrefill = 2;
// Where the CPU tier pays and is filled, a decode now is worth so much more than its price, or of
// what it costs without prefill if that is more: one that is put off may find none to hide behind.
constexpr double kSooner = 0.5;
// A load that goes on is taken to bring so many times what is there now.
constexpr double kGoesOn = 8;
constexpr double kStagesPerLayer = 3;  // pre, attend, post
constexpr size_t kMostTried = 40;
// Prefill rows of a step that are tried for the device alone.
constexpr double kSlowestPace = 64;
constexpr double kPaceFactor = 1.3;
// Gain for which prompts are prefilled more slowly than they could be.
constexpr double kPaceMargin = 1.03;

}  // namespace

// A step with `cpu` sequences on the CPU beside those that fill the device, each decode with its
// share of prefill, and `more_rows` of prefill.
Planner::SteadyStep Planner::SteadyStepOf(double cpu, double more_rows) const {
  const double decodes =
      DecodesPerStep(state_.mix, DeviceConcurrency(state_, Bounds()) + cpu, Bounds());
  return MixedStep(cpu, decodes, state_.mix.prompt_rows_per_decode() * decodes + more_rows);
}

// A step of `decodes` and `rows` of prefill, with `cpu` sequences on the CPU beside those that fill
// the device.
Planner::SteadyStep Planner::MixedStep(double cpu, double decodes, double rows) const {
  SteadyStep step;
  const double on_gpu = DeviceConcurrency(state_, Bounds());
  step.decodes = decodes;
  step.prefill_rows = rows;
  const double share = cpu / (on_gpu + cpu);
  const double gpu = step.decodes * (1 - share);
  const double context = MeanContext(state_.mix);
  const double prompt = std::max(state_.mix.prompt_tokens, 1.0);
  const CostModel& model = predictor_.model();
  const Corrections& corrections = state_.corrections;

  LayerTerms base;
  base.gpu_decode_us =
      corrections.gpu_decode * model.GpuDecodeUs(std::max<int64_t>(static_cast<int64_t>(gpu), 1),
                                                 static_cast<int64_t>(gpu * context));
  base.prefill_us = corrections.prefill * model.PrefillUs(static_cast<int64_t>(prompt), 0) *
                    step.prefill_rows / prompt;
  base.move_out_us =
      corrections.copies * model.CopyUs(static_cast<int64_t>(step.prefill_rows * share));
  const auto with = [&](const LayerTerms& terms, double beside, double on_cpu) {
    SubBatchLoad load;
    load.rows =
        beside + on_cpu > 0 ? std::max<int64_t>(static_cast<int64_t>(beside + on_cpu), 1) : 0;
    load.cpu_decodes = std::llround(on_cpu);
    load.cpu_context_tokens = static_cast<int64_t>(on_cpu * context);
    return WithCpuDecodes(terms, load);
  };
  const double a_rows = gpu + step.prefill_rows;
  const double n = step.decodes * share;
  const double stages_us = kStagesPerLayer * predictor_.LaunchUs(corrections);
  double layer_us = SteadyLayerUs(with(base, a_rows, n), {}) + stages_us;
  if (n > 0 && config_.switches.asymmetric) {
    for (const double in_b : {n, 0.75 * n, 0.5 * n}) {
      const double two_us =
          SteadyLayerUs(with(base, a_rows, n - in_b), with({}, 0, in_b)) + 2 * stages_us;
      layer_us = std::min(layer_us, two_us);
    }
    if (config_.switches.chunk_balancing) {
      LayerTerms half;
      half.prefill_us = base.prefill_us / 2;
      half.move_out_us = base.move_out_us / 2;
      LayerTerms a = half;
      a.gpu_decode_us = base.gpu_decode_us;
      const double rows_each = step.prefill_rows / 2;
      const double two_us =
          SteadyLayerUs(with(a, gpu + rows_each, n / 2), with(half, rows_each, n / 2)) +
          2 * stages_us;
      layer_us = std::min(layer_us, two_us);
    }
  }
  step.total_us = std::max(layer_us * model.num_layers(), 1e-6);
  return step;
}

// The device alone, when it prefills `rows` in a step whenever a prompt is there: a prompt holds
// its room while it is prefilled and while it decodes.
Planner::AloneStep Planner::AloneWith(double rows) const {
  const double sequences = DeviceConcurrency(state_, Bounds());
  const double prompt = std::max(state_.mix.prompt_tokens, 1.0);
  const double output = std::max(state_.mix.output_tokens, 1.0);
  const double prefill_steps = std::max(prompt / rows, 1.0);
  const double ends = std::min(sequences / (output + prefill_steps), rows / prompt);  // in a step
  const double share = std::min(ends * prompt / rows, 1.0);  // of the steps that prefill
  AloneStep step;
  step.rows = rows;
  step.decodes = ends * output;
  const CostModel& model = predictor_.model();
  const Corrections& corrections = state_.corrections;
  const auto layer_us = [&](double prefill_rows) {
    const auto decodes = std::max<int64_t>(static_cast<int64_t>(step.decodes), 1);
    return corrections.linear * model.LinearUs(decodes + static_cast<int64_t>(prefill_rows)) +
           corrections.gpu_decode *
               model.GpuDecodeUs(decodes,
                                 static_cast<int64_t>(step.decodes * MeanContext(state_.mix))) +
           corrections.prefill * model.PrefillUs(static_cast<int64_t>(prompt), 0) * prefill_rows /
               prompt +
           kStagesPerLayer * predictor_.LaunchUs(corrections);
  };
  step.total_us =
      std::max(model.num_layers() * (share * layer_us(rows) + (1 - share) * layer_us(0)), 1e-6);
  return step;
}

// The device alone at its best pace of prefill: few rows come with the reading of the weights, but
// a prompt that is prefilled slowly holds its room for longer.
Planner::AloneStep Planner::BestAlone() const {
  const double most = std::max(config_.max_num_batched_tokens, 1);
  const AloneStep at_once = AloneWith(most);
  AloneStep best = at_once;
  double rows = kSlowestPace;
  while (rows < most) {
    const AloneStep step = AloneWith(rows);
    best = step.rate() > best.rate() ? step : best;
    rows *= kPaceFactor;
  }
  best.gain = best.rate() / at_once.rate();
  return best.gain > kPaceMargin ? best : at_once;
}

// A decode beside no prefill, with `cpu` sequences on the CPU beside those that fill the device.
double Planner::DecodeUsBeside(double cpu) const {
  return 1 / MixedStep(cpu, DeviceConcurrency(state_, Bounds()) + cpu, 0).rate();
}

// What a load is taken to go on to bring, and what of it is there.
Planner::Sight Planner::LookAhead() const {
  Sight sight;
  sight.requests = static_cast<double>(state_.resident.size() + state_.waiting.size()) *
                   (1 + kGoesOn * state_.mix.replaced);
  sight.on_cpu = static_cast<double>(
      std::count_if(state_.resident.begin(), state_.resident.end(),
                    [](const SequenceView* view) { return view->tier == Tier::kCpu; }));
  sight.row_us = PrefillRowUs(predictor_, state_);
  sight.decode_us = DecodeUsBeside(0);
  sight.held_us = DecodeUsBeside(sight.on_cpu / 2);
  return sight;
}

// Decodes per time, for as many requests as are in sight, with `cpu` sequences on the CPU and
// `rate` in the steady state. A tier has to be filled and emptied: half of it is prefilled before
// as many decodes are there as the steady state has, and half of its decodes come when there is no
// prefill left to hide behind. What is in it already has to come out whatever is decided.
double Planner::RateInSight(const Sight& sight, double cpu, double rate) const {
  const double filled = std::max(cpu - sight.on_cpu, 0.0) / 2;
  const double emptied = std::max(cpu, sight.on_cpu) / 2;
  const double output = std::max(state_.mix.output_tokens, 1.0);
  const double beside_us = cpu > sight.on_cpu ? DecodeUsBeside(emptied) : sight.held_us;
  const double fill_us = filled * state_.mix.prompt_tokens * sight.row_us;
  const double empty_us = emptied * output * std::min(beside_us, sight.decode_us);
  const double between_us = std::max(sight.requests - emptied, emptied) * output / rate;
  return std::max(sight.requests, 2 * emptied) * output / (fill_us + between_us + empty_us);
}

// Of the sizes that are nearly as good as the best one the largest, as long as its steps do not
// keep each token waiting for a gain that hardly shows. The inter-token target comes first, if
// there is one.
double Planner::Largest(std::span<const TierSize> tried, double best) const {
  const auto target_us = static_cast<double>(config_.max_step_us);
  double wanted = 0;
  double smallest_us = 0;
  for (const TierSize& size : tried) {
    const bool is_long = target_us > 0 && size.step_us > target_us;
    if (size.rate < kNearlyBest * best || (is_long && wanted > 0)) {
      continue;
    }
    smallest_us = smallest_us > 0 ? smallest_us : size.step_us;
    if (size.step_us <= std::max(kLongStepUs, kLongStep * smallest_us)) {
      wanted = size.cpu;
    }
  }
  return wanted;
}

// The number of CPU decodes that the best steady state has; 0: the device alone is as good.
double Planner::BestCpuDecodes(double alone) const {
  if (!rules_.cpu_usable) {
    return 0;
  }
  // Whole blocks each, and what admission keeps free; no more than there are.
  const double blocks_each =
      state_.cpu.BlocksFor(static_cast<int64_t>(MeanContext(state_.mix))) + 0.5;
  const auto open = static_cast<double>(state_.resident.size() + state_.waiting.size());
  const double beside_device = config_.max_num_seqs - DeviceConcurrency(state_, Bounds());
  const double most =
      std::floor(std::min({0.98 * state_.cpu.total_blocks / blocks_each,
                           2.0 * config_.max_cpu_rows_per_slot, beside_device, open}));
  if (most < 1) {
    return 0;
  }
  std::array<TierSize, kMostTried> tried;
  size_t count = 0;
  const Sight sight = LookAhead();
  const double without = RateInSight(sight, 0, alone);
  double best = without;
  for (double n = 1; count < kMostTried;) {
    const SteadyStep step = SteadyStepOf(n, 0);
    tried[count] = {n, RateInSight(sight, n, step.rate()), step.total_us};
    best = std::max(best, tried[count].rate);
    ++count;
    if (n >= most) {
      break;
    }
    n = std::min(std::max(n + 1, std::floor(n * 1.3)), most);
  }
  const double wanted = Largest(std::span(tried).first(count), best);
  const double deviation =
      std::sqrt(state_.mix.prompt_variance) / std::max(state_.mix.prompt_tokens, 1.0);
  const double to_fill = 1 - std::min(sight.on_cpu / std::max(wanted, 1.0), 1.0);
  const double margin =
      kAdmissionMargin + kUneven * to_fill * deviation / std::sqrt(std::max(sight.requests, 1.0));
  return best > margin * without ? wanted : 0;
}

// What work is worth and how many sequences the CPU tier is given for speed.
SteadyState Planner::Study() const {
  constexpr double kMoreRows = 128;
  SteadyState steady;
  steady.is_known = true;
  const AloneStep alone = BestAlone();
  steady.alone_rows = static_cast<int64_t>(alone.rows);
  steady.alone_gain = alone.gain;
  steady.cpu_decodes = BestCpuDecodes(alone.rate());
  if (steady.cpu_decodes > 0) {
    steady.cpu_target = static_cast<int32_t>(steady.cpu_decodes * kInPrefill) + kMoreInPrefill;
  }
  const SteadyStep step = SteadyStepOf(steady.cpu_decodes, 0);
  steady.gain = step.rate() / SteadyStepOf(0, 0).rate();
  steady.surely_pays = steady.cpu_decodes > 0 && steady.gain > kAdmissionMargin;
  const auto value_with = [&step](double row_us) {
    const double decode_us = (step.total_us - row_us * step.prefill_rows) / step.decodes;
    return WorkValue{std::max(decode_us, std::max(row_us, 1e-3)), row_us};
  };
  steady.ramp = value_with(PrefillRowUs(predictor_, state_));
  steady.bare_decode_us = MixedStep(steady.cpu_decodes, step.decodes, 0).total_us / step.decodes;
  const double more_us = SteadyStepOf(steady.cpu_decodes, kMoreRows).total_us - step.total_us;
  steady.filled = value_with(std::clamp(more_us / kMoreRows, 0.0, steady.ramp.row_us));
  return steady;
}

// How far the CPU tier has the decodes that its best state has.
double Planner::Fill() const {
  return steady_.cpu_decodes > 0
             ? std::min(static_cast<double>(cpu_decodes_.size()) / steady_.cpu_decodes, 1.0)
             : 0.0;
}

// The fuller the CPU tier is, the less it is worth to bring more prompts there.
WorkValue Planner::ValueNow() const {
  const double fill = Fill();
  const double decode_us =
      steady_.ramp.decode_us + fill * (steady_.filled.decode_us - steady_.ramp.decode_us);
  const double sooner_us =
      steady_.surely_pays ? fill * kSooner * std::max(decode_us, steady_.bare_decode_us) : 0.0;
  return {decode_us + sooner_us,
          steady_.ramp.row_us + fill * (steady_.filled.row_us - steady_.ramp.row_us)};
}

// Whether sequences are on the CPU for speed, rather than until the device has room for them.
bool Planner::CpuTierServes() const {
  return steady_.cpu_decodes > 0 && state_.cpu_up &&
         (state_.offload_pays || !config_.switches.guard);
}

// Before it is, prefill is not cut: the best step of an empty tier is no way to fill it.
bool Planner::CpuTierIsFilled() const { return cpu_residents_ >= kFilled * steady_.cpu_decodes; }

// Whether one more waiting sequence is put on the CPU rather than wait for room on the device.
bool Planner::CpuTierPays() const {
  return gpu_residents_ + cpu_residents_ == 0 ||
         (CpuTierServes() && cpu_residents_ < steady_.cpu_target);
}

}  // namespace tandem::gpu_worker
