#include "cli/plan/workload.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/bench/random_arrivals.h"
#include "cli/bench/trace_file.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

// Longer than any context that a model of today takes.
constexpr int64_t kMaxTokens = int64_t{1} << 24;

absl::StatusOr<std::vector<PlannedArrival>> FromTrace(const WorkloadSource& source) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<TraceRequest> trace,
                          ReadTrace(source.trace, source.requests));
  std::vector<PlannedArrival> requests;
  for (size_t i = 0; i < trace.size(); ++i) {
    const int64_t longest = std::max(trace[i].prompt_tokens, trace[i].output_tokens);
    if (longest > kMaxTokens) {
      return absl::InvalidArgumentError(absl::StrCat(source.trace, ": request ", i + 1, " has ",
                                                     longest, " tokens; allowed: up to ",
                                                     kMaxTokens));
    }
    requests.push_back({trace[i].arrival_us.value_or(0),
                        static_cast<int32_t>(trace[i].prompt_tokens),
                        static_cast<int32_t>(trace[i].output_tokens)});
  }
  std::stable_sort(
      requests.begin(), requests.end(),
      [](const PlannedArrival& a, const PlannedArrival& b) { return a.arrival_us < b.arrival_us; });
  return requests;
}

int32_t Draw(int64_t mean, double spread, SplitMix& random) {
  const double scale = 1 + spread * (2 * random.Next() - 1);
  return static_cast<int32_t>(
      std::max<int64_t>(std::llround(static_cast<double>(mean) * scale), 1));
}

}  // namespace

absl::StatusOr<std::vector<PlannedArrival>> MakeRequests(const WorkloadSource& source) {
  if (!source.trace.empty()) {
    return FromTrace(source);
  }
  const struct {
    const char* flag;
    int64_t value;
  } fields[] = {{"--prompt-len", source.prompt_tokens},
                {"--output-len", source.output_tokens},
                {"--requests", source.requests}};
  for (const auto& field : fields) {
    if (field.value < 1 || field.value > kMaxTokens) {
      return absl::InvalidArgumentError(
          absl::StrCat(field.flag, " is ", field.value, "; allowed: 1 to ", kMaxTokens,
                       " (--prompt-len, --output-len and --requests, or --trace FILE)"));
    }
  }
  if (!(source.spread >= 0 && source.spread < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--length-spread is ", source.spread, "; allowed: 0 to below 1"));
  }
  SplitMix random(source.seed);
  std::vector<PlannedArrival> requests(static_cast<size_t>(source.requests));
  for (PlannedArrival& request : requests) {
    request.prompt_tokens = Draw(source.prompt_tokens, source.spread, random);
    request.output_tokens = Draw(source.output_tokens, source.spread, random);
  }
  return requests;
}

std::vector<PlannedArrival> WithArrivals(std::vector<PlannedArrival> requests,
                                         const ArrivalPlan& plan) {
  RandomArrivals arrivals(plan.rate, plan.seed);
  for (PlannedArrival& request : requests) {
    if (plan.rate > 0) {
      request.arrival_us = arrivals.NextUs();
    } else if (!plan.use_timestamps) {
      request.arrival_us = 0;
    }
  }
  return requests;
}

}  // namespace tandem::cli
