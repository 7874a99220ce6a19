#include "cli/plan/plan_html.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/plan/plan_report.h"
#include "cli/plan/svg_plot.h"

namespace tandem::cli {
namespace {

using Value = std::function<double(const PlanOutcome&)>;

// What a line of a plot has in common besides the mode: everything but the x value.
std::string Rest(const PlanPoint& point, bool with_rate, bool with_output) {
  std::string text;
  if (point.prompt_len > 0) {
    absl::StrAppend(&text, " ", point.prompt_len, "/");
    if (with_output) {
      absl::StrAppend(&text, point.output_len);
    }
  }
  if (point.cpu_gb_per_s > 0) {
    absl::StrAppend(&text, absl::StrFormat(" %g GB/s", point.cpu_gb_per_s));
  }
  if (with_rate && point.rate > 0) {
    absl::StrAppend(&text, absl::StrFormat(" %g/s", point.rate));
  }
  return text;
}

std::vector<PlotLine> LinesBy(const std::vector<PlanOutcome>& outcomes, const Value& x,
                              const Value& y, bool is_by_rate) {
  std::vector<PlotLine> lines;
  for (const PlanOutcome& outcome : outcomes) {
    const std::string label = outcome.point.offload + Rest(outcome.point, !is_by_rate, is_by_rate);
    auto line = std::find_if(lines.begin(), lines.end(),
                             [&label](const PlotLine& known) { return known.label == label; });
    if (line == lines.end()) {
      line = lines.insert(line, PlotLine{label, {}});
    }
    line->points.emplace_back(x(outcome), y(outcome));
  }
  for (PlotLine& line : lines) {
    std::sort(line.points.begin(), line.points.end());
  }
  return lines;
}

std::string LatencyPlots(const std::vector<PlanOutcome>& outcomes) {
  const Value rate = [](const PlanOutcome& outcome) { return outcome.point.rate; };
  const Value per_token = [](const PlanOutcome& outcome) {
    return outcome.result.per_token_us.Mean() * 1e-6;
  };
  const Value first = [](const PlanOutcome& outcome) {
    return outcome.result.first_token_us.Percentile(90) * 1e-6;
  };
  const Value gap = [](const PlanOutcome& outcome) {
    return outcome.result.inter_token_us.Percentile(90) * 1e-3;
  };
  return SvgPlot(
             {"Latency against rate", "requests per second", "s per output token, mean", 0, true},
             LinesBy(outcomes, rate, per_token, true)) +
         SvgPlot({"Time to first token against rate", "requests per second", "s, p90", 0, true},
                 LinesBy(outcomes, rate, first, true)) +
         SvgPlot({"Inter-token latency against rate", "requests per second", "ms, p90"},
                 LinesBy(outcomes, rate, gap, true));
}

std::string ThroughputPlots(const std::vector<PlanOutcome>& outcomes) {
  const Value length = [](const PlanOutcome& outcome) {
    return static_cast<double>(outcome.point.output_len);
  };
  const Value tokens = [](const PlanOutcome& outcome) {
    return OutputTokensPerSecond(outcome.result);
  };
  const Value gain = [&outcomes](const PlanOutcome& outcome) {
    const PlanOutcome* base = BaselineOf(outcomes, outcome.point);
    return base == nullptr
               ? 0.0
               : OutputTokensPerSecond(outcome.result) / OutputTokensPerSecond(base->result);
  };
  std::string html = SvgPlot({"Throughput against output length", "output tokens of a request",
                              "output tokens per second"},
                             LinesBy(outcomes, length, tokens, false));
  const bool has_base = std::any_of(outcomes.begin(), outcomes.end(),
                                    [](const PlanOutcome& o) { return o.point.offload == "off"; });
  if (has_base) {
    html += SvgPlot({"Gain over GPU only", "output tokens of a request", "ratio"},
                    LinesBy(outcomes, length, gain, false));
  }
  return html;
}

std::string TimelinePlots(const PlanOutcome& outcome) {
  const std::vector<TimelinePoint>& timeline = outcome.result.timeline;
  if (timeline.size() < 2) {
    return "";
  }
  const double length_us = static_cast<double>(timeline[1].start_us - timeline[0].start_us);
  PlotLine modes[3];
  PlotLine gpu{"GPU", {}};
  PlotLine cpu{"CPU attention", {}};
  PlotLine tokens{"tokens/s", {}};
  for (const TimelinePoint& point : timeline) {
    const double second = static_cast<double>(point.start_us) * 1e-6;
    const double busy_us =
        std::max(point.mode_us[0] + point.mode_us[1] + point.mode_us[2], length_us);
    for (int mode = 0; mode < 3; ++mode) {
      modes[mode].label = gpu_worker::StepModeName(static_cast<gpu_worker::StepMode>(mode));
      modes[mode].points.emplace_back(second, point.mode_us[mode] / busy_us);
    }
    gpu.points.emplace_back(second, point.gpu_busy_us / busy_us);
    cpu.points.emplace_back(second, point.cpu_busy_us / busy_us);
    tokens.points.emplace_back(second,
                               static_cast<double>(point.output_tokens) / (length_us * 1e-6));
  }
  const std::string name =
      absl::StrCat("--offload ", outcome.point.offload, Rest(outcome.point, true, true), ": ");
  return SvgPlot({name + "share of time by mode", "s", "share", 1, false, true},
                 {modes[0], modes[1], modes[2]}) +
         SvgPlot({name + "busy fractions", "s", "share", 1}, {gpu, cpu}) +
         SvgPlot({name + "throughput", "s", "output tokens per second"}, {tokens});
}

bool HasSeveral(const std::vector<PlanOutcome>& outcomes, const Value& value) {
  return std::any_of(outcomes.begin(), outcomes.end(), [&](const PlanOutcome& outcome) {
    return value(outcome) != value(outcomes.front());
  });
}

}  // namespace

std::string PlanHtml(const PlanSettings& settings, const std::vector<PlanOutcome>& outcomes) {
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tandem plan: ",
      HtmlText(settings.model_name), " on ", HtmlText(settings.profile.name),
      "</title></head>\n<body style=\"font-family:sans-serif\">\n<h1>",
      HtmlText(settings.model_name), " on ", settings.tensor_parallel, " x ",
      HtmlText(settings.profile.name), "</h1>\n<pre>", HtmlText(PlanTable(settings, outcomes)),
      "</pre>\n");
  if (outcomes.empty()) {
    return html + "</body></html>\n";
  }
  if (HasSeveral(outcomes, [](const PlanOutcome& o) { return o.point.rate; })) {
    html += LatencyPlots(outcomes);
  }
  if (HasSeveral(outcomes,
                 [](const PlanOutcome& o) { return static_cast<double>(o.point.output_len); })) {
    html += ThroughputPlots(outcomes);
  }
  const size_t modes = std::min(settings.offload.size(), outcomes.size());
  for (size_t i = outcomes.size() - modes; i < outcomes.size(); ++i) {
    html += TimelinePlots(outcomes[i]);
  }
  return html + "</body></html>\n";
}

}  // namespace tandem::cli
