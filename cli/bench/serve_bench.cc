#include "cli/bench/serve_bench.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "absl/strings/str_cat.h"
#include "cli/bench/bench_report.h"
#include "cli/bench/random_arrivals.h"
#include "cli/bench/trace_file.h"
#include "common/base/config.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr int64_t kMaxRequests = 10'000'000;

void Declare(base::ConfigSpec* spec, ServeBenchFlags* flags) {
  spec->String("url", &flags->url, "the server, http://HOST[:PORT]");
  spec->String("trace", &flags->trace,
               "CSV of requests: [TIMESTAMP,] ContextTokens or prompt_tokens, GeneratedTokens or "
               "output_tokens");
  spec->OptionalInt("prompt-len", &flags->prompt_len, 1, kMaxTokens, "tokens of each prompt");
  spec->OptionalInt("output-len", &flags->output_len, 1, kMaxTokens, "tokens of each answer");
  spec->OptionalInt("requests", &flags->requests, 1, kMaxRequests,
                    "how many; with --trace its first ones");
  spec->OptionalInt("concurrency", &flags->concurrency, 1, 65536, "requests at a time");
  spec->Double("rate", &flags->rate, 0, 1e6,
               "requests per second, arriving at random (Poisson); 0: not by rate");
  spec->String("model", &flags->model, "default: the first that /v1/models lists");
  spec->String("api-key", &flags->api_key, "sent as bearer token");
  spec->Bool("stream", &flags->stream, "server-sent events; --no-stream: whole answers");
  spec->Int("seed", &flags->seed, 0, int64_t{1} << 62, "of prompts and arrivals");
  spec->Int("timeout", &flags->timeout_s, 1, 86400, "seconds for one request");
  spec->Int("max-connections", &flags->max_connections, 1, 65536,
            "open at once; requests above it wait");
  spec->Bool("table", &flags->table, "a table instead of JSON");
}

absl::StatusOr<std::vector<PlannedRequest>> PlanTrace(const ServeBenchFlags& flags) {
  if (flags.prompt_len || flags.output_len) {
    return absl::InvalidArgumentError(
        "--trace gives the lengths; allowed beside it: --requests, --concurrency or --rate");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<TraceRequest> trace,
                          ReadTrace(flags.trace, flags.requests.value_or(0)));
  std::vector<PlannedRequest> requests;
  for (const TraceRequest& request : trace) {
    requests.push_back(
        {request.arrival_us.value_or(0), request.prompt_tokens, request.output_tokens});
  }
  std::stable_sort(
      requests.begin(), requests.end(),
      [](const PlannedRequest& a, const PlannedRequest& b) { return a.arrival_us < b.arrival_us; });
  return requests;
}

absl::StatusOr<std::vector<PlannedRequest>> PlanUniform(const ServeBenchFlags& flags) {
  const struct {
    const char* name;
    bool given;
  } needed[] = {{"--prompt-len", flags.prompt_len.has_value()},
                {"--output-len", flags.output_len.has_value()},
                {"--requests", flags.requests.has_value()},
                {"--concurrency or --rate", flags.concurrency || flags.rate > 0}};
  for (const auto& flag : needed) {
    if (!flag.given) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag.name,
          " is missing; allowed: --trace FILE, or --prompt-len P --output-len O --requests N with "
          "--concurrency C or --rate R"));
    }
  }
  return std::vector<PlannedRequest>(static_cast<size_t>(*flags.requests),
                                     {0, *flags.prompt_len, *flags.output_len});
}

// What went wrong, once per kind.
void PrintErrors(const LoadOutcome& outcome) {
  constexpr size_t kMaxKinds = 5;
  std::map<std::string, int64_t> counts;
  for (const RequestOutcome& request : outcome.requests) {
    if (!request.ok && (counts.size() < kMaxKinds || counts.count(request.error) > 0)) {
      ++counts[request.error];
    }
  }
  for (const auto& [error, count] : counts) {
    std::fprintf(stderr, "tandem bench serve: %lld x %s\n", static_cast<long long>(count),
                 error.c_str());
  }
}

LoadOptions OptionsOf(const ServeBenchFlags& flags, const ServerUrl& url) {
  LoadOptions options;
  options.url = url;
  options.model = flags.model;
  options.api_key = flags.api_key;
  options.concurrency = flags.concurrency.value_or(0);
  options.stream = flags.stream;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.timeout_us = flags.timeout_s * 1'000'000;
  options.max_connections = flags.max_connections;
  return options;
}

int Failed(int status, const absl::Status& error) {
  std::fprintf(stderr, "tandem bench serve: %s\n", std::string(error.message()).c_str());
  return status;
}

int Measure(const ServeBenchFlags& flags, const ServerUrl& url,
            std::vector<PlannedRequest> requests) {
  LoadOptions options = OptionsOf(flags, url);
  const absl::StatusOr<ServedModel> model = FetchServedModel(options);
  if (!model.ok()) {
    return Failed(1, model.status());
  }
  if (options.model.empty()) {
    options.model = model->id;
  }
  if (const int64_t clipped = ClipToContext(model->max_model_len, &requests); clipped > 0) {
    std::fprintf(stderr, "tandem bench serve: %lld requests shortened to the context of %lld\n",
                 static_cast<long long>(clipped), static_cast<long long>(model->max_model_len));
  }
  const absl::StatusOr<LoadOutcome> outcome = RunLoad(options, requests);
  if (!outcome.ok()) {
    return Failed(1, outcome.status());
  }
  PrintErrors(*outcome);
  const std::string report =
      flags.table ? ReportTable(*outcome) : ReportJson(options, *outcome) + "\n";
  std::fputs(report.c_str(), stdout);
  std::fflush(stdout);
  const bool any_ok = std::any_of(outcome->requests.begin(), outcome->requests.end(),
                                  [](const RequestOutcome& request) { return request.ok; });
  return any_ok ? 0 : 1;
}

}  // namespace

absl::StatusOr<std::vector<PlannedRequest>> PlanRequests(const ServeBenchFlags& flags) {
  if (flags.concurrency && flags.rate > 0) {
    return absl::InvalidArgumentError("--concurrency and --rate exclude each other");
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<PlannedRequest> requests,
                          flags.trace.empty() ? PlanUniform(flags) : PlanTrace(flags));
  if (flags.rate > 0) {
    RandomArrivals arrivals(flags.rate, static_cast<uint64_t>(flags.seed));
    for (PlannedRequest& request : requests) {
      request.arrival_us = arrivals.NextUs();
    }
  }
  return requests;
}

int64_t ClipToContext(int64_t max_model_len, std::vector<PlannedRequest>* requests) {
  int64_t clipped = 0;
  for (PlannedRequest& request : *requests) {
    if (max_model_len < 2 || request.prompt_tokens + request.output_tokens <= max_model_len) {
      continue;
    }
    request.output_tokens = std::min(request.output_tokens, max_model_len - 1);
    request.prompt_tokens = std::min(request.prompt_tokens, max_model_len - request.output_tokens);
    ++clipped;
  }
  return clipped;
}

int RunServeBench(const std::vector<std::string>& args) {
  ServeBenchFlags flags;
  base::ConfigSpec spec("tandem bench serve",
                        "Loads a running server and prints throughput and latencies.");
  Declare(&spec, &flags);
  const absl::StatusOr<base::ConfigSpec::Outcome> parsed = spec.Parse(args, {});
  if (!parsed.ok()) {
    return Failed(2, parsed.status());
  }
  if (*parsed == base::ConfigSpec::Outcome::kExitZero) {
    return 0;
  }
  const absl::StatusOr<ServerUrl> url = ParseServerUrl(flags.url);
  if (!url.ok()) {
    return Failed(2, absl::InvalidArgumentError(absl::StrCat("--url ", url.status().message())));
  }
  absl::StatusOr<std::vector<PlannedRequest>> requests = PlanRequests(flags);
  if (!requests.ok()) {
    return Failed(2, requests.status());
  }
  return Measure(flags, *url, *std::move(requests));
}

}  // namespace tandem::cli
