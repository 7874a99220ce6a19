#include "cli/plan/sweep.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/kv_layout/kv_layout.h"
#include "gpu_worker/cost_model/profile_cost_model.h"

namespace tandem::cli {
namespace {

constexpr double kGigaPerUs = 1e3;
constexpr int kTimelinePoints = 120;
constexpr int kSearchSteps = 10;
// CPU tiers that --deploy looks at: more than any host of today has.
constexpr double kMostGbPerS = 2000;
constexpr double kMostCpuKvBytes = 2e12;
// Of the rate: a run that ends this much later than its arrivals has met it all the same, because
// the last requests need their time.
constexpr double kKeepsUp = 0.9;

int32_t BlocksOf(int64_t tokens, int64_t block_tokens) {
  return static_cast<int32_t>(
      std::min<int64_t>(tokens / block_tokens, std::numeric_limits<int32_t>::max()));
}

gpu_worker::RunnerLimits LimitsFor(const PlanSettings& settings) {
  gpu_worker::RunnerLimits limits;
  limits.gpu_block_tokens = static_cast<int32_t>(settings.flags.block_size);
  limits.num_gpu_blocks = BlocksOf(settings.gpu_kv_tokens, limits.gpu_block_tokens);
  limits.cpu_block_tokens = kv::kCpuBlockTokens;
  limits.num_cpu_blocks = BlocksOf(settings.cpu_kv_tokens, limits.cpu_block_tokens);
  limits.max_cpu_rows_per_slot = static_cast<int32_t>(settings.flags.max_num_seqs);
  limits.max_cpu_table_entries_per_slot = limits.num_cpu_blocks;
  limits.max_batched_tokens = static_cast<int32_t>(settings.flags.max_num_batched_tokens);
  return limits;
}

absl::StatusOr<std::vector<PlannedArrival>> RequestsFor(const PlanSettings& settings,
                                                        const PlanPoint& point) {
  WorkloadSource source;
  source.trace = settings.flags.trace;
  source.prompt_tokens = point.prompt_len;
  source.output_tokens = point.output_len;
  source.spread = settings.flags.length_spread;
  source.requests = settings.flags.requests.value_or(0);
  source.seed = static_cast<uint64_t>(settings.flags.seed);
  TANDEM_ASSIGN_OR_RETURN(std::vector<PlannedArrival> requests, MakeRequests(source));
  ArrivalPlan arrivals;
  arrivals.rate = point.rate;
  arrivals.use_timestamps = !settings.flags.all_at_once;
  arrivals.seed = source.seed;
  return WithArrivals(std::move(requests), arrivals);
}

bool MeetsLatency(const PlanSettings& settings, const SimulationResult& result) {
  return result.completed > 0 &&
         result.per_token_us.Mean() <= settings.max_per_token_latency_s * 1e6;
}

bool MeetsRate(const PlanSettings& settings, const PlanOutcome& outcome) {
  const SimulationResult& result = outcome.result;
  const double served = static_cast<double>(result.completed) / std::max(result.seconds(), 1e-6);
  return MeetsLatency(settings, result) && served >= kKeepsUp * outcome.point.rate &&
         result.refused == 0;
}

// The smallest x in [low, high] with meets(x), which holds for `high`, to a few percent.
absl::StatusOr<double> Smallest(double low, double high,
                                const std::function<absl::StatusOr<bool>(double)>& meets) {
  for (int i = 0; i < kSearchSteps && high > 1.03 * low; ++i) {
    const double middle = std::sqrt(low * high);
    TANDEM_ASSIGN_OR_RETURN(const bool is_met, meets(middle));
    (is_met ? high : low) = middle;
  }
  return high;
}

}  // namespace

std::vector<PlanPoint> PointsOf(const PlanSettings& settings) {
  std::vector<PlanPoint> points;
  for (const double bandwidth : settings.cpu_bandwidths) {
    for (const int64_t prompt : settings.prompt_lens) {
      for (const int64_t output : settings.output_lens) {
        for (const double rate : settings.rates) {
          for (const std::string& offload : settings.offload) {
            points.push_back({offload, bandwidth, prompt, output, rate});
          }
        }
      }
    }
  }
  return points;
}

absl::StatusOr<SimulationSetup> SetupFor(const PlanSettings& settings, const PlanPoint& point) {
  SimulationSetup setup;
  gpu_worker::ProfileCostOptions options;
  options.compute_dtype = settings.dtype;
  options.cpu_kv_dtype = settings.cpu_kv_dtype;
  options.tensor_parallel = settings.tensor_parallel;
  options.graphs = settings.flags.launch == "graph";
  options.max_sampled_rows = settings.flags.max_num_seqs;
  options.cpu_attention_bytes_per_us = point.cpu_gb_per_s * kGigaPerUs;
  TANDEM_ASSIGN_OR_RETURN(setup.cost_model, gpu_worker::MakeProfileCostModel(
                                                settings.profile, settings.shape, options));
  setup.limits = LimitsFor(settings);
  TANDEM_ASSIGN_OR_RETURN(setup.engine.offload, OffloadPolicyOf(point.offload));
  if (setup.engine.offload == gpu_worker::OffloadPolicy::kOff) {
    setup.limits.num_cpu_blocks = 0;
  }
  setup.engine.max_model_len = settings.max_model_len;
  setup.engine.max_num_seqs = static_cast<int32_t>(settings.flags.max_num_seqs);
  setup.engine.max_num_batched_tokens = static_cast<int32_t>(settings.flags.max_num_batched_tokens);
  setup.engine.switches = settings.switches;
  setup.engine.max_inter_token_latency_us = 1000 * settings.flags.max_inter_token_latency_ms;
  setup.concurrency = settings.flags.concurrency;
  setup.step_overhead_us = settings.flags.step_overhead_us;
  setup.window_from_us = std::llround(settings.flags.measure_from_s * 1e6);
  setup.window_us = std::llround(settings.flags.measure_for_s * 1e6);
  if (settings.flags.cpu_slowdown > 1) {
    Disturbance slow;
    slow.from_us = static_cast<int64_t>(settings.flags.cpu_slowdown_from_s * 1e6);
    slow.factors.cpu_decode = settings.flags.cpu_slowdown;
    setup.disturbances.push_back(slow);
  }
  return setup;
}

absl::StatusOr<PlanOutcome> RunPoint(const PlanSettings& settings, const PlanPoint& point) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<PlannedArrival> requests, RequestsFor(settings, point));
  TANDEM_ASSIGN_OR_RETURN(SimulationSetup setup, SetupFor(settings, point));
  TANDEM_ASSIGN_OR_RETURN(SimulationResult result, Simulate(setup, requests));
  if (result.completed == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--offload ", point.offload, ": none of ", result.requests,
        " requests fits: --max-model-len is ", settings.max_model_len, ", --gpu-kv-tokens ",
        settings.gpu_kv_tokens, ", --cpu-kv-tokens ", settings.cpu_kv_tokens));
  }
  if (setup.window_us > 0 && setup.window_from_us + setup.window_us > result.duration_us) {
    return absl::InvalidArgumentError(
        absl::StrCat("--measure-from and --measure-for end after ", settings.flags.measure_from_s,
                     " + ", settings.flags.measure_for_s, " s; --offload ", point.offload,
                     " ends after ", result.seconds(), " s: more --requests"));
  }
  if (!settings.flags.html.empty() &&
      result.duration_us > 0) {  // again, now that its length is known
    setup.timeline_us = result.duration_us / kTimelinePoints + 1;
    TANDEM_ASSIGN_OR_RETURN(result, Simulate(setup, requests));
  }
  return PlanOutcome{point, std::move(result)};
}

absl::StatusOr<std::vector<PlanOutcome>> RunPoints(const PlanSettings& settings,
                                                   const std::vector<PlanPoint>& points) {
  std::vector<std::optional<absl::StatusOr<PlanOutcome>>> slots(points.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < points.size(); i = next++) {
      slots[i] =
          settings.flags.find_rate ? FindRate(settings, points[i]) : RunPoint(settings, points[i]);
    }
  };
  const auto cores = static_cast<int64_t>(std::max(std::thread::hardware_concurrency(), 1U));
  const int64_t jobs = settings.flags.jobs > 0 ? settings.flags.jobs : cores;
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < std::min<int64_t>(jobs, static_cast<int64_t>(points.size())); ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<PlanOutcome> outcomes;
  for (auto& slot : slots) {
    TANDEM_RETURN_IF_ERROR(slot->status());
    outcomes.push_back(**std::move(slot));
  }
  return outcomes;
}

absl::StatusOr<PlanOutcome> FindRate(const PlanSettings& settings, PlanPoint point) {
  PlanSettings quick = settings;
  quick.flags.html.clear();
  // All at once shows what the setting can do at most; around it lies what it sustains.
  quick.flags.all_at_once = true;
  point.rate = 0;
  TANDEM_ASSIGN_OR_RETURN(const PlanOutcome most, RunPoint(quick, point));
  const double capacity = static_cast<double>(most.result.completed) / most.result.seconds();
  double low = capacity / 64;
  double high = capacity * 16;
  std::optional<PlanOutcome> best;
  const auto try_rate = [&](double rate) -> absl::StatusOr<bool> {
    point.rate = rate;
    TANDEM_ASSIGN_OR_RETURN(PlanOutcome outcome, RunPoint(quick, point));
    const bool is_met = MeetsLatency(settings, outcome.result);
    if (is_met && (!best || rate > best->point.rate)) {
      best = std::move(outcome);
    }
    return is_met;
  };
  TANDEM_ASSIGN_OR_RETURN(bool is_met, try_rate(low));
  for (int i = 0; is_met && i < kSearchSteps + 3 && high > 1.005 * low; ++i) {
    const double middle = std::sqrt(low * high);
    TANDEM_ASSIGN_OR_RETURN(const bool middle_is_met, try_rate(middle));
    (middle_is_met ? low : high) = middle;
  }
  if (!best) {
    point.rate = 0;
    return PlanOutcome{point, most.result};
  }
  return *std::move(best);
}

absl::StatusOr<DeployAnswer> FindDeployment(const PlanSettings& settings, PlanPoint point) {
  DeployAnswer answer;
  PlanSettings trial = settings;
  trial.flags.html.clear();
  const double token_bytes = gpu_worker::KvBytesPerToken(settings.shape, settings.cpu_kv_dtype);
  point.offload = "off";
  TANDEM_ASSIGN_OR_RETURN(const PlanOutcome alone, RunPoint(trial, point));
  answer.is_met_without_cpu = MeetsRate(settings, alone);
  answer.is_met = answer.is_met_without_cpu;
  if (answer.is_met) {
    return answer;
  }
  point.offload = "auto";
  const auto meets = [&](double gb_per_s, double tokens) -> absl::StatusOr<bool> {
    point.cpu_gb_per_s = gb_per_s;
    trial.cpu_kv_tokens = static_cast<int64_t>(tokens);
    TANDEM_ASSIGN_OR_RETURN(const PlanOutcome outcome, RunPoint(trial, point));
    return MeetsRate(settings, outcome);
  };
  const double most_tokens = kMostCpuKvBytes / token_bytes;
  TANDEM_ASSIGN_OR_RETURN(answer.is_met, meets(kMostGbPerS, most_tokens));
  if (!answer.is_met) {
    return answer;
  }
  TANDEM_ASSIGN_OR_RETURN(answer.cpu_gb_per_s, Smallest(1, kMostGbPerS, [&](double gb_per_s) {
                            return meets(gb_per_s, most_tokens);
                          }));
  TANDEM_ASSIGN_OR_RETURN(const double tokens,
                          Smallest(kv::kCpuBlockTokens, most_tokens, [&](double tokens) {
                            return meets(answer.cpu_gb_per_s, tokens);
                          }));
  answer.cpu_kv_tokens = static_cast<int64_t>(std::ceil(tokens));
  answer.cpu_kv_bytes = tokens * token_bytes;
  return answer;
}

}  // namespace tandem::cli
