#include "cli/plan/plan_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;

double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

double Share(double part, double whole) { return whole > 0 ? Rounded(part / whole) : 0; }

ordered_json Distribution(const Histogram& us) {
  if (us.count() == 0) {
    return nullptr;
  }
  return {{"mean", Rounded(us.Mean() * 1e-3)},
          {"p50", Rounded(us.Percentile(50) * 1e-3)},
          {"p90", Rounded(us.Percentile(90) * 1e-3)},
          {"p99", Rounded(us.Percentile(99) * 1e-3)}};
}

ordered_json Modes(const double (&values)[3]) {
  const double sum = values[0] + values[1] + values[2];
  ordered_json shares;
  for (int mode = 0; mode < 3; ++mode) {
    shares[gpu_worker::StepModeName(static_cast<gpu_worker::StepMode>(mode))] =
        Share(values[mode], sum);
  }
  return shares;
}

void AddSetting(const PlanSettings& settings, const PlanPoint& point, ordered_json* line) {
  ordered_json& json = *line;
  json["model"] = settings.model_name;
  json["gpu"] = settings.profile.name;
  json["tensor_parallel"] = settings.tensor_parallel;
  json["gpu_kv_tokens"] = settings.gpu_kv_tokens;
  json["cpu_kv_tokens"] = settings.cpu_kv_tokens;
  json["cpu_kv_dtype"] = DTypeName(settings.cpu_kv_dtype);
  if (point.cpu_gb_per_s > 0) {
    json["cpu_bandwidth_gb_per_s"] = point.cpu_gb_per_s;
  }
  if (point.prompt_len > 0) {
    json["prompt_len"] = point.prompt_len;
    json["output_len"] = point.output_len;
  }
  json["rate"] = point.rate > 0 ? ordered_json(Rounded(point.rate)) : ordered_json(nullptr);
}

std::string SettingText(const PlanPoint& point) {
  std::string text;
  if (point.prompt_len > 0) {
    absl::StrAppend(&text, point.prompt_len, "/", point.output_len, " ");
  }
  if (point.cpu_gb_per_s > 0) {
    absl::StrAppend(&text, absl::StrFormat("%.4g GB/s ", point.cpu_gb_per_s));
  }
  if (point.rate > 0) {
    absl::StrAppend(&text, absl::StrFormat("%.4g/s", point.rate));
  }
  return text;
}

bool IsSameSetting(const PlanPoint& a, const PlanPoint& b) {
  return a.cpu_gb_per_s == b.cpu_gb_per_s && a.prompt_len == b.prompt_len &&
         a.output_len == b.output_len;
}

}  // namespace

double OutputTokensPerSecond(const SimulationResult& result) {
  return result.window_us > 0
             ? static_cast<double>(result.window_tokens) * 1e6 /
                   static_cast<double>(result.window_us)
             : static_cast<double>(result.output_tokens) / std::max(result.seconds(), 1e-6);
}

double RequestsPerSecond(const SimulationResult& result) {
  return static_cast<double>(result.completed) / std::max(result.seconds(), 1e-6);
}

std::string PlanJson(const PlanSettings& settings, const PlanOutcome& outcome) {
  const SimulationResult& result = outcome.result;
  const auto duration_us = static_cast<double>(result.duration_us);
  const double steps[3] = {static_cast<double>(result.steps[0]),
                           static_cast<double>(result.steps[1]),
                           static_cast<double>(result.steps[2])};
  const auto& counters = result.counters;
  const auto decodes = static_cast<double>(counters.decode_tokens_cpu + counters.decode_tokens_gpu);
  ordered_json line = {{"offload", outcome.point.offload}};
  AddSetting(settings, outcome.point, &line);
  if (settings.flags.find_rate) {
    line["sustained_rate"] = Rounded(outcome.point.rate);
    line["max_per_token_latency_s"] = settings.max_per_token_latency_s;
  }
  line.update({{"requests", result.requests},
               {"completed", result.completed},
               {"refused", result.refused},
               {"duration_s", Rounded(result.seconds())},
               {"output_tokens", result.output_tokens},
               {"requests_per_s", Rounded(RequestsPerSecond(result))},
               {"output_tokens_per_s", Rounded(OutputTokensPerSecond(result))},
               {"ttft_ms", Distribution(result.first_token_us)},
               {"itl_ms", Distribution(result.inter_token_us)},
               {"e2e_ms", Distribution(result.total_us)},
               {"per_token_ms", Distribution(result.per_token_us)},
               {"steps", result.steps[0] + result.steps[1] + result.steps[2]},
               {"step_share", Modes(steps)},
               {"time_share", Modes(result.mode_us)},
               {"gpu_busy", Share(result.gpu_busy_us, duration_us)},
               {"cpu_busy", Share(result.cpu_busy_us, duration_us)},
               {"cpu_token_share", Share(static_cast<double>(counters.decode_tokens_cpu), decodes)},
               {"swap_outs", counters.swap_outs},
               {"swap_ins", counters.swap_ins},
               {"recomputes", counters.recomputes}});
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

const PlanOutcome* BaselineOf(const std::vector<PlanOutcome>& outcomes, const PlanPoint& point) {
  const PlanOutcome* same_lengths = nullptr;
  for (const PlanOutcome& outcome : outcomes) {
    if (outcome.point.offload != "off" || !IsSameSetting(outcome.point, point)) {
      continue;
    }
    if (outcome.point.rate == point.rate) {
      return &outcome;
    }
    same_lengths = &outcome;
  }
  return same_lengths;
}

std::string PlanTable(const PlanSettings& settings, const std::vector<PlanOutcome>& outcomes) {
  const bool by_rate = settings.flags.find_rate;
  std::string table = absl::StrFormat(
      "%s on %d x %s, %d GPU and %d CPU KV tokens (%s)\n"
      "%-24s %-10s %7s %8s %9s %7s %9s %9s %9s %9s %6s %5s %5s %5s %5s\n",
      settings.model_name, settings.tensor_parallel, settings.profile.name, settings.gpu_kv_tokens,
      settings.cpu_kv_tokens, DTypeName(settings.cpu_kv_dtype), "lengths, bandwidth, rate",
      "offload", "done", "req/s", "tokens/s", "gain", "ttft p50", "itl p50", "itl p99", "ms/token",
      "GPU%", "CPU%", "gpu", "unif.", "asym.");
  for (const PlanOutcome& outcome : outcomes) {
    const SimulationResult& result = outcome.result;
    const PlanOutcome* base = BaselineOf(outcomes, outcome.point);
    double gain = 0;
    if (base != nullptr) {
      gain = by_rate ? outcome.point.rate / std::max(base->point.rate, 1e-9)
                     : OutputTokensPerSecond(result) / OutputTokensPerSecond(base->result);
    }
    const auto duration_us = static_cast<double>(std::max<int64_t>(result.duration_us, 1));
    const double steps = static_cast<double>(
        std::max<int64_t>(result.steps[0] + result.steps[1] + result.steps[2], 1));
    absl::StrAppend(
        &table,
        absl::StrFormat("%-24s %-10s %7d %8.3f %9.1f %7s %9.0f %9.1f %9.1f %9.1f %6.1f %5.1f ",
                        SettingText(outcome.point), outcome.point.offload, result.completed,
                        RequestsPerSecond(result), OutputTokensPerSecond(result),
                        gain > 0 ? absl::StrFormat("%.3f", gain) : "-",
                        result.first_token_us.Percentile(50) * 1e-3,
                        result.inter_token_us.Percentile(50) * 1e-3,
                        result.inter_token_us.Percentile(99) * 1e-3,
                        result.per_token_us.Mean() * 1e-3, 100 * result.gpu_busy_us / duration_us,
                        100 * result.cpu_busy_us / duration_us),
        absl::StrFormat("%5.2f %5.2f %5.2f\n", static_cast<double>(result.steps[0]) / steps,
                        static_cast<double>(result.steps[1]) / steps,
                        static_cast<double>(result.steps[2]) / steps));
  }
  return table;
}

std::string DeployJson(const PlanSettings& settings, const PlanPoint& point,
                       const DeployAnswer& answer) {
  ordered_json deploy = {{"met", answer.is_met},
                         {"met_without_cpu", answer.is_met_without_cpu},
                         {"max_per_token_latency_s", settings.max_per_token_latency_s}};
  if (answer.is_met && !answer.is_met_without_cpu) {
    deploy["cpu_bandwidth_gb_per_s"] = Rounded(answer.cpu_gb_per_s);
    deploy["cpu_kv_size_bytes"] = std::ceil(answer.cpu_kv_bytes);
    deploy["cpu_kv_tokens"] = answer.cpu_kv_tokens;
  }
  ordered_json line;
  AddSetting(settings, point, &line);
  line.erase("cpu_kv_tokens");
  line["deploy"] = deploy;
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string DeployText(const PlanSettings& settings, const PlanPoint& point,
                       const DeployAnswer& answer) {
  const std::string goal = absl::StrFormat("%.4g requests per second at %.4g s per token",
                                           point.rate, settings.max_per_token_latency_s);
  const std::string gpu = absl::StrCat(settings.tensor_parallel, " x ", settings.profile.name);
  if (answer.is_met_without_cpu) {
    return absl::StrCat("Deploy ", gpu, " alone: it serves ", goal, " without a CPU tier.\n");
  }
  if (!answer.is_met) {
    return absl::StrCat("No CPU tier makes ", gpu, " serve ", goal,
                        ": deploy more or larger GPUs, or split the load.\n");
  }
  return absl::StrFormat(
      "Deploy %s with a host whose CPU attention reaches %.3g GB/s (%s KV) and --cpu-kv-size "
      "%.3gGiB "
      "(%d tokens): the smallest that serve %s.\n",
      gpu, answer.cpu_gb_per_s, DTypeName(settings.cpu_kv_dtype), answer.cpu_kv_bytes / 0x1p30,
      answer.cpu_kv_tokens, goal);
}

}  // namespace tandem::cli
