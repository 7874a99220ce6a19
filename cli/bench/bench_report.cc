#include "cli/bench/bench_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using nlohmann::ordered_json;

struct Totals {
  int64_t completed = 0;
  int64_t errors = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  double seconds = 0;
  std::vector<double> first_token_ms;
  std::vector<double> inter_token_ms;
  std::vector<double> total_ms;
};

Totals Sum(const LoadOutcome& outcome) {
  Totals totals;
  // At least a microsecond: rates stay finite.
  totals.seconds = static_cast<double>(std::max<int64_t>(outcome.duration_us, 1)) * 1e-6;
  for (const RequestOutcome& request : outcome.requests) {
    if (!request.ok) {
      ++totals.errors;
      continue;
    }
    ++totals.completed;
    totals.prompt_tokens += request.prompt_tokens;
    totals.output_tokens += request.output_tokens;
    totals.total_ms.push_back(static_cast<double>(request.total_us) * 1e-3);
    if (request.first_token_us) {
      totals.first_token_ms.push_back(static_cast<double>(*request.first_token_us) * 1e-3);
    }
    for (const int64_t gap_us : request.inter_token_us) {
      totals.inter_token_ms.push_back(static_cast<double>(gap_us) * 1e-3);
    }
  }
  return totals;
}

// Three decimals: microseconds of milliseconds, and lines that people can read.
double Rounded(double value) { return std::round(value * 1e3) / 1e3; }

double Mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

ordered_json Distribution(const std::vector<double>& values) {
  if (values.empty()) {
    return nullptr;
  }
  return {{"mean", Rounded(Mean(values))},
          {"p50", Rounded(Percentile(values, 50))},
          {"p90", Rounded(Percentile(values, 90))},
          {"p99", Rounded(Percentile(values, 99))}};
}

std::string TableRow(const char* name, const std::vector<double>& values) {
  if (values.empty()) {
    return "";
  }
  char line[160];
  std::snprintf(line, sizeof(line), "%-26s %12.2f %12.2f %12.2f %12.2f\n", name, Mean(values),
                Percentile(values, 50), Percentile(values, 90), Percentile(values, 99));
  return line;
}

std::string TableCount(const char* name, double value) {
  char line[160];
  std::snprintf(line, sizeof(line), "%-26s %12.2f\n", name, value);
  return line;
}

}  // namespace

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) {
    return 0;
  }
  std::sort(values.begin(), values.end());
  const double position = percent / 100.0 * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (position - static_cast<double>(below));
}

std::string ReportJson(const LoadOptions& options, const LoadOutcome& outcome) {
  const Totals totals = Sum(outcome);
  const ordered_json report = {
      {"model", options.model},
      {"requests", outcome.requests.size()},
      {"completed", totals.completed},
      {"errors", totals.errors},
      {"duration_s", Rounded(totals.seconds)},
      {"prompt_tokens", totals.prompt_tokens},
      {"output_tokens", totals.output_tokens},
      {"requests_per_s", Rounded(static_cast<double>(totals.completed) / totals.seconds)},
      {"output_tokens_per_s", Rounded(static_cast<double>(totals.output_tokens) / totals.seconds)},
      {"ttft_ms", Distribution(totals.first_token_ms)},
      {"itl_ms", Distribution(totals.inter_token_ms)},
      {"e2e_ms", Distribution(totals.total_ms)},
  };
  return report.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string ReportTable(const LoadOutcome& outcome) {
  const Totals totals = Sum(outcome);
  std::string table;
  absl::StrAppend(&table, TableCount("requests", static_cast<double>(outcome.requests.size())),
                  TableCount("errors", static_cast<double>(totals.errors)),
                  TableCount("duration, s", totals.seconds));
  absl::StrAppend(
      &table, TableCount("requests per s", static_cast<double>(totals.completed) / totals.seconds),
      TableCount("output tokens per s",
                 static_cast<double>(totals.output_tokens) / totals.seconds));
  absl::StrAppend(&table,
                  "                                   mean          p50          p90"
                  "          p99\n");
  absl::StrAppend(&table, TableRow("time to first token, ms", totals.first_token_ms),
                  TableRow("inter-token latency, ms", totals.inter_token_ms),
                  TableRow("whole request, ms", totals.total_ms));
  return table;
}

}  // namespace tandem::cli
