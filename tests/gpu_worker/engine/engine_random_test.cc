#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "tests/common/base/sanitized.h"
#include "tests/gpu_worker/engine/core_driver.h"

namespace tandem::gpu_worker {
namespace {

constexpr uint64_t kEpisodes = kSanitized ? 1'000 : 10'000;
constexpr int kMostSteps = 20'000;

// What all episodes did together: shows that they reach what they are for.
struct Totals {
  EngineSnapshot sums;
  uint64_t refused = 0, whole = 0, outgrown = 0, errors = 0;

  void Add(const EngineSnapshot& one) {
    for (int mode = 0; mode < 3; ++mode) {
      sums.steps[mode] += one.steps[mode];
    }
    sums.swap_outs += one.swap_outs;
    sums.swap_ins += one.swap_ins;
    sums.recomputes += one.recomputes;
    sums.decode_tokens_gpu += one.decode_tokens_gpu;
    sums.decode_tokens_cpu += one.decode_tokens_cpu;
    sums.aborted_steps_cpu_worker_lost += one.aborted_steps_cpu_worker_lost;
  }
};

// One seeded life of a server: arrivals, cancellations, deaths of the CPU worker in the middle of
// steps, returns, and absences past the bound, on pools that hold a few sequences at best.
class Episode {
 public:
  Episode(uint64_t seed, Totals* total)
      : random_(seed), total_(total), driver_(Options(), Limits(), Rates()) {}

  void Run() {
    const int arrivals = Between(1, 30);
    driver_.runner().set_before_run([this](const StepInput&) { InTheMiddleOfAStep(); });
    driver_.runner().set_timer([this](const StepInput&) { return RandomTimings(); });
    for (int tick = 0; tick < kMostSteps; ++tick) {
      if (submitted_ < arrivals && Chance(30)) {
        Arrive();
      }
      if (Chance(3)) {
        CancelOne();
      }
      if (has_cpu_) {
        CpuWorkerEvents();
      }
      driver_.Step();
      ForgetEnded();
      if (submitted_ == arrivals && driver_.core().idle()) {
        break;
      }
    }
    CheckEnd();
  }

 private:
  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int percent) { return Between(1, 100) <= percent; }

  EngineOptions Options() {
    EngineOptions options;
    constexpr OffloadPolicy kPolicies[] = {OffloadPolicy::kAuto,       OffloadPolicy::kAuto,
                                           OffloadPolicy::kOff,        OffloadPolicy::kUnified,
                                           OffloadPolicy::kAsymmetric, OffloadPolicy::kAllCpu,
                                           OffloadPolicy::kNeo};
    policy_ = kPolicies[Between(0, 6)];
    options.offload = policy_;
    options.max_num_seqs = Between(1, 8);
    options.max_num_batched_tokens = Between(1, 40);
    breaks_ = Chance(20);
    options.eos_token_ids = {5, 6};
    options.cpu_worker_away_limit_us = 300'000;
    options.cpu_worker_lost_limit_us = 600'000;
    return options;
  }

  RunnerLimits Limits() {
    RunnerLimits limits = SmallLimits(Between(2, 20), Chance(85) ? Between(1, 8) : 0);
    limits.gpu_block_tokens = Between(1, 5);
    limits.cpu_block_tokens = limits.gpu_block_tokens * Between(1, 6);
    limits.max_cpu_rows_per_slot = Between(1, 4);
    limits.max_cpu_table_entries_per_slot = Chance(50) ? Between(2, 8) : 100;
    limits.max_batched_tokens = 40;
    limits.saturating_rows = Between(0, 40);
    limits.vocab_size = 40;
    has_cpu_ = limits.num_cpu_blocks > 0;
    return limits;
  }

  MeasuredRates Rates() {
    if (Chance(20)) {
      return MeasuredRates();
    }
    MeasuredRates rates = HostLikeRates();
    rates.overlap = Between(0, 2) / 2.0;
    rates.cpu_attention_bytes_per_us = Between(1, 100) * 100.0;
    rates.num_layers = Between(1, 6);
    return rates;
  }

  void Arrive() {
    GenerationRequest request = driver_.Request(Between(1, 30), Between(1, 25), submitted_++);
    if (Chance(30)) {
      for (int i = Between(1, 10); i > 0; --i) {
        request.resumed_tokens.push_back(Between(7, 39));
      }
    }
    request.ignore_eos = Chance(50);
    request.min_tokens = Chance(30) ? Between(1, request.max_tokens) : 0;
    request.num_logprobs = Chance(20) ? 1 : -1;
    request.num_prompt_logprobs = Chance(20) ? 0 : -1;
    request.priority = Chance(20) ? Between(-1, 1) : 0;
    const uint64_t id = driver_.Submit(request);
    if (id != 0) {
      requests_[id] = request;
    } else {
      ++total_->refused;
    }
  }

  // Requests and cancellations come while the step runs, too, and some steps break.
  void InTheMiddleOfAStep() {
    if (Chance(3)) {
      CancelOne();
    }
    if (has_cpu_ && is_up_ && Chance(1)) {  // gone and back before the step's end
      driver_.core().OnCpuWorkerDown(driver_.now_us);
      driver_.core().OnCpuWorkerUp();
    }
    if (breaks_ && Chance(1)) {
      driver_.runner().FailNext(Chance(50) ? absl::InternalError("broken")
                                           : absl::UnavailableError("for once"));
    }
  }

  // Measurements as wild as can be: no plan may depend on them being sane.
  StepTimings RandomTimings() {
    StepTimings timings;
    timings.total_us = Between(0, 100'000);
    timings.linear_us = Between(0, 50'000);
    timings.gpu_decode_us = Between(0, 5'000);
    timings.cpu_decode_us = Between(0, 20'000);
    return timings;
  }

  void CancelOne() {
    if (requests_.empty()) {
      return;
    }
    auto it = requests_.begin();
    std::advance(it, Between(0, static_cast<int>(requests_.size()) - 1));
    driver_.core().Cancel(it->first);
    requests_.erase(it);
  }

  void CpuWorkerEvents() {
    if (is_up_ && Chance(2)) {
      is_up_ = false;
      if (Chance(50)) {
        driver_.CpuWorkerDown();
      } else {
        driver_.runner().SetCpuWorkerUp(false);  // noticed by a step first
      }
    } else if (!is_up_ && Chance(Between(0, 1) == 0 ? 2 : 20)) {
      is_up_ = true;
      driver_.core().OnCpuWorkerDown(driver_.now_us);
      driver_.CpuWorkerUp();
    }
  }

  void ForgetEnded() {
    for (auto it = requests_.begin(); it != requests_.end();) {
      const auto& outcome = driver_.outcome(it->first);
      if (!outcome.ended) {
        ++it;
        continue;
      }
      CheckOutcome(it->second, outcome);
      it = requests_.erase(it);
    }
  }

  void CheckOutcome(const GenerationRequest& request, const CoreDriver::Outcome& outcome) {
    const std::vector<int32_t> expected = driver_.Expected(request);
    if (outcome.last.finish == FinishReason::kAbort) {
      EXPECT_TRUE(breaks_ || (has_cpu_ && absl::IsUnavailable(outcome.last.error)))
          << outcome.last.error;
    }
    ASSERT_LE(outcome.tokens.size(), expected.size());
    const bool whole = outcome.tokens.size() == expected.size();
    if (outcome.last.finish == FinishReason::kAbort) {
      ++total_->errors;
    } else {
      ++(whole ? total_->whole : total_->outgrown);
    }
    EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), expected.begin()));
    if (outcome.last.finish == FinishReason::kStop) {
      EXPECT_TRUE(whole);
    }
    if (!outcome.tokens.empty() && request.num_prompt_logprobs >= 0) {
      CheckPromptLogprobs(request, outcome);
    }
    EXPECT_EQ(outcome.last.completion_tokens,
              static_cast<int32_t>(outcome.tokens.size() + request.resumed_tokens.size()));
  }

  static void CheckPromptLogprobs(const GenerationRequest& request,
                                  const CoreDriver::Outcome& outcome) {
    ASSERT_EQ(outcome.prompt_logprobs.size(), request.prompt_tokens.size() - 1);
    for (size_t i = 0; i + 1 < request.prompt_tokens.size(); ++i) {
      const int32_t next = request.prompt_tokens[i + 1];
      EXPECT_EQ(outcome.prompt_logprobs[i].chosen.token_id, next);
      EXPECT_EQ(outcome.prompt_logprobs[i].chosen.logprob,
                FakeStepRunner::PromptLogprob(std::span(request.prompt_tokens).first(i + 1), next));
    }
  }

  void CheckEnd() {
    EXPECT_TRUE(driver_.core().idle()) << "sequences hang";
    EXPECT_TRUE(requests_.empty());
    EXPECT_THAT(driver_.runner().errors(), testing::IsEmpty());
    const EngineSnapshot snapshot = driver_.snapshot();
    EXPECT_EQ(snapshot.gpu_blocks_used, 0);
    EXPECT_EQ(snapshot.cpu_blocks_used, 0);
    total_->Add(snapshot);
  }

  std::mt19937_64 random_;
  Totals* total_;
  OffloadPolicy policy_ = OffloadPolicy::kAuto;
  bool has_cpu_ = false;
  bool is_up_ = true;
  bool breaks_ = false;
  int submitted_ = 0;
  CoreDriver driver_;
  std::map<uint64_t, GenerationRequest> requests_;  // open
};

// TANDEM_SEED=n runs that episode alone.
TEST(EngineRandomTest, EverySequenceEndsWithItsTokens) {
  const char* only = std::getenv("TANDEM_SEED");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 0;
  const uint64_t last = only != nullptr ? first + 1 : kEpisodes;
  Totals total;
  for (uint64_t seed = first; seed < last && !HasFailure(); ++seed) {
    SCOPED_TRACE("TANDEM_SEED=" + std::to_string(seed));
    Episode(seed, &total).Run();
  }
  if (only != nullptr) {
    return;
  }
  EXPECT_GT(total.whole, 5 * kEpisodes);
  EXPECT_GT(total.outgrown, kEpisodes / 10);
  EXPECT_GT(total.errors, kEpisodes / 100);
  EXPECT_GT(total.sums.steps[1], kEpisodes);
  EXPECT_GT(total.sums.steps[2], kEpisodes);
  EXPECT_GT(total.sums.swap_outs, kEpisodes / 10);
  EXPECT_GT(total.sums.swap_ins, kEpisodes / 10);
  EXPECT_GT(total.sums.recomputes, kEpisodes / 10);
  EXPECT_GT(total.sums.aborted_steps_cpu_worker_lost, kEpisodes / 10);
}

}  // namespace
}  // namespace tandem::gpu_worker
