// What masks cost a step that computes beside them: each step asks for the masks of its sequences,
// leaves the CPU alone for as long as a device would work, and then takes them.
//   mask_exposure_bench TOKENIZER SCHEMAS.jsonl [STEP_US [SEQUENCES [STEPS]]]
// SCHEMAS: one {"id", "schema"} per line; sequences take them in turn, with random tokens.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cli/text/open_tokenizer.h"
#include "gpu_worker/service/grammar_service.h"
#include "nlohmann/json.hpp"
#include "tests/bench/structured_output/figures.h"

namespace tandem::gpu_worker {
namespace {

using Clock = std::chrono::steady_clock;
using structured_output::GrammarSpec;

struct Sequence {
  GrammarSpec spec;
  std::shared_ptr<TokenConstraint> constraint;
  std::vector<int32_t> output;
};

std::shared_ptr<TokenConstraint> Prepare(GrammarService& service, const GrammarSpec& spec) {
  std::promise<std::shared_ptr<TokenConstraint>> promise;
  service.Prepare(spec, [&promise](absl::StatusOr<std::shared_ptr<TokenConstraint>> constraint) {
    promise.set_value(constraint.ok() ? *std::move(constraint) : nullptr);
  });
  return promise.get_future().get();
}

std::vector<GrammarSpec> ReadSchemas(const char* path, GrammarService& service) {
  std::vector<GrammarSpec> specs;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    GrammarSpec spec;
    spec.kind = GrammarSpec::Kind::kJsonSchema;
    spec.text = nlohmann::ordered_json::parse(line)["schema"].dump();
    if (Prepare(service, spec) != nullptr) {
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

struct Times {
  std::vector<double> begin_us, exposed_us;  // of each step
};

struct Run {
  GrammarService& service;
  int32_t end_id = 0;
  int64_t step_us = 0;
  std::mt19937 random{1};
};

bool Step(Run& run, std::vector<Sequence>* sequences, Times* times) {
  const auto started = Clock::now();
  for (const Sequence& sequence : *sequences) {
    sequence.constraint->Begin(sequence.output);
  }
  times->begin_us.push_back(Microseconds(Clock::now() - started));
  std::this_thread::sleep_until(started + std::chrono::microseconds(run.step_us));
  double exposed_us = 0;
  std::vector<int32_t> allowed;
  for (Sequence& sequence : *sequences) {
    const auto asked = Clock::now();
    const auto mask = sequence.constraint->Wait();
    exposed_us += Microseconds(Clock::now() - asked);
    if (!mask.ok()) {
      std::fprintf(stderr, "%s\n", mask.status().ToString().c_str());
      return false;
    }
    allowed.clear();
    for (size_t id = 0; id < mask->size() * 32; ++id) {
      if (((*mask)[id / 32] >> (id % 32) & 1u) != 0) {
        allowed.push_back(static_cast<int32_t>(id));
      }
    }
    const int32_t token = allowed.empty() ? run.end_id : allowed[run.random() % allowed.size()];
    sequence.output.push_back(token);
    if (token == run.end_id) {
      sequence.constraint = Prepare(run.service, sequence.spec);
      sequence.output.clear();
    }
  }
  times->exposed_us.push_back(exposed_us);
  return true;
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(
        stderr,
        "usage: mask_exposure_bench TOKENIZER SCHEMAS.jsonl [STEP_US [SEQUENCES [STEPS]]]\n");
    return 2;
  }
  const int64_t step_us = argc > 3 ? std::atoll(argv[3]) : 5000;
  const size_t num_sequences = argc > 4 ? static_cast<size_t>(std::atoll(argv[4])) : 16;
  const int64_t num_steps = argc > 5 ? std::atoll(argv[5]) : 200;
  auto tokenizer = cli::OpenTokenizer(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  GrammarOptions options;
  options.tokenizer = *std::move(tokenizer);
  options.vocab_size = options.tokenizer->vocab_size();
  const int32_t end_id = options.tokenizer->eos_id().value_or(options.vocab_size - 1);
  options.eos_token_ids = {end_id};
  options.cache_bytes = size_t{4} << 30;
  const auto service = GrammarService::Create(options);
  const std::vector<GrammarSpec> specs = ReadSchemas(argv[2], *service);
  if (specs.empty()) {
    std::fprintf(stderr, "no schema could be prepared\n");
    return 1;
  }
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < num_sequences; ++i) {
    const GrammarSpec& spec = specs[i % specs.size()];
    sequences.push_back({spec, Prepare(*service, spec), {}});
  }
  Run run{*service, end_id, step_us};
  Times times;
  for (int64_t step = 0; step < num_steps; ++step) {
    if (!Step(run, &sequences, &times)) {
      return 1;
    }
  }
  const auto count = static_cast<double>(num_sequences);
  std::printf(
      "vocabulary %d, %zu schemas, steps of %lld us with %zu sequences: asking p50 %.1f us, p99 "
      "%.1f "
      "us a step; exposed p50 %.1f us, p99 %.1f us a step (p99 %.2f us a token)\n",
      options.vocab_size, specs.size(), static_cast<long long>(step_us), num_sequences,
      Quantile(times.begin_us, 0.5), Quantile(times.begin_us, 0.99),
      Quantile(times.exposed_us, 0.5), Quantile(times.exposed_us, 0.99),
      Quantile(times.exposed_us, 0.99) / count);
  return 0;
}

}  // namespace
}  // namespace tandem::gpu_worker

int main(int argc, char** argv) { return tandem::gpu_worker::Main(argc, argv); }
