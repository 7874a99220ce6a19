#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu_worker/engine/sim_server.h"

namespace tandem::gpu_worker {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kRuns = 150;  // one thread, ten times slower
#else
constexpr uint64_t kRuns = 1'500;
#endif
constexpr int kMostSteps = 60'000;

// One seeded life of a server with simulated time: arrivals, cancellations, priorities, deaths and
// slowdowns of the CPU worker, tiny pools, beliefs about costs that are wrong. Whatever happens,
// every sequence ends with its tokens, blocks come back, and no CPU decode is passed over for
// longer than its bound.
class Life {
 public:
  explicit Life(uint64_t seed) : random_(seed) {
    MakeMachine();
    const std::shared_ptr<const CostModel> believed = MakeRooflineCostModel(Believed());
    const std::shared_ptr<const CostModel> truth = MakeRooflineCostModel(rates_);
    server_ = std::make_unique<SimServer>(options_, limits_, believed, truth);
  }

  void Live() {
    const int arrivals = Between(5, 60);
    double next_us = server_->now_us();
    for (int step = 0; step < kMostSteps; ++step) {
      while (static_cast<int>(open_.size() + done_) < arrivals && server_->now_us() >= next_us) {
        Arrive();
        next_us += Exponential(mean_gap_us_);
      }
      Disturb();
      if (!server_->Step()) {
        server_->Wait(5'000);
      }
      Look(step);
      if (static_cast<int>(done_) >= arrivals && server_->core().idle()) {
        break;
      }
    }
    CheckEnd(arrivals);
  }

 private:
  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Chance(int percent) { return Between(1, 100) <= percent; }
  double Exponential(double mean) {
    return std::exponential_distribution<double>(1 / mean)(random_);
  }

  void MakeMachine() {
    rates_ = Chance(50) ? T4Rates(Between(2, 80)) : A10gRates(Between(2, 200));
    rates_.num_layers = Between(1, 8);  // steps of some milliseconds
    rates_.overlap = Between(0, 2) / 2.0;
    longest_ = Between(20, 400);
    limits_ = SimLimits(16 * Between(1, 60), Chance(85) ? 128 * Between(1, 60) : 0);
    limits_.max_cpu_rows_per_slot = Between(1, 32);
    limits_.saturating_rows = Chance(50) ? Between(1, 400) : 0;
    constexpr OffloadPolicy kPolicies[] = {OffloadPolicy::kAuto,   OffloadPolicy::kAuto,
                                           OffloadPolicy::kAuto,   OffloadPolicy::kNeo,
                                           OffloadPolicy::kAllCpu, OffloadPolicy::kOff};
    options_.offload = kPolicies[Between(0, 5)];
    options_.max_num_seqs = Between(1, 64);
    options_.max_num_batched_tokens = Between(8, 512);
    options_.max_inter_token_latency_us = Chance(30) ? Between(1, 200) * 1000 : 0;
    options_.cpu_worker_away_limit_us = 2'000'000;
    options_.cpu_worker_lost_limit_us = 20'000'000;
    options_.switches = {Chance(90), Chance(90), Chance(90), Chance(90)};
    mean_gap_us_ = Between(1, 300) * 1e3;
  }

  MeasuredRates Believed() {
    MeasuredRates rates = rates_;
    rates.cpu_attention_bytes_per_us *= Between(2, 40) / 10.0;
    rates.flops_per_us *= Between(5, 20) / 10.0;
    rates.memory_bytes_per_us *= Between(5, 20) / 10.0;
    return rates;
  }

  void Arrive() {
    const uint64_t id =
        server_->Submit(Between(1, longest_), Between(1, 60), Chance(20) ? Between(-2, 2) : 0);
    if (id == 0) {
      ++done_;  // fits no pool: refused at once
    } else {
      open_.push_back(id);
    }
  }

  void Disturb() {
    if (!open_.empty() && Chance(1)) {
      const auto index = static_cast<size_t>(Between(0, static_cast<int>(open_.size()) - 1));
      server_->Cancel(open_[index]);
      open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(index));
      ++done_;
    }
    if (limits_.num_cpu_blocks > 0 && Between(1, 300) == 1) {
      server_->SetCpuWorkerUp(false);
    } else if (!server_->cpu_worker_up() && Between(1, 40) == 1) {
      server_->SetCpuWorkerUp(true);
    }
    if (Between(1, 200) == 1) {
      server_->set_cpu_share(Between(1, 10) / 10.0);
    }
  }

  void Look(int step) {
    std::erase_if(open_, [this](uint64_t id) {
      const bool ended = server_->times(id).ended;
      done_ += ended ? 1 : 0;
      return ended;
    });
    if (step % 16 != 0) {
      return;
    }
    const CoreSnapshot books = server_->core().Books();
    const absl::Status status = CheckCoreInvariants(books);
    ASSERT_TRUE(status.ok()) << status;
    CheckPassedOver(books);
  }

  // The stated bound: 32 steps, eight times as many for what may wait to come back to the device,
  // and one more for each that the rest of a step has no room for.
  void CheckPassedOver(const CoreSnapshot& books) {
    uint64_t on_cpu = 0;
    uint64_t longest[2] = {0, 0};  // that can come back, that cannot
    const int64_t device_tokens = int64_t{limits_.num_gpu_blocks} * limits_.gpu_block_tokens;
    for (const SequenceView& view : books.sequences) {
      if (view.tier == Tier::kCpu && view.is_decode()) {
        ++on_cpu;
        uint64_t& passed_over = longest[view.total_tokens + 1 > device_tokens ? 1 : 0];
        passed_over = std::max(passed_over, books.step_index - view.last_progress_step);
      }
    }
    if (!server_->cpu_worker_up()) {
      settled_at_ = books.step_index + 100 + on_cpu;
    }
    if (options_.offload == OffloadPolicy::kAuto && books.step_index > settled_at_) {
      ASSERT_LE(longest[0], 8 * 32 + on_cpu + 16);
      ASSERT_LE(longest[1], 32 + on_cpu + 16);
    }
  }

  void CheckEnd(int arrivals) {
    EXPECT_EQ(static_cast<int>(done_), arrivals) << "sequences hang";
    EXPECT_TRUE(server_->core().idle());
    const EngineSnapshot snapshot = server_->core().snapshot(0);
    EXPECT_EQ(snapshot.gpu_blocks_used, 0);
    EXPECT_EQ(snapshot.cpu_blocks_used, 0);
  }

  std::mt19937_64 random_;
  MeasuredRates rates_;
  RunnerLimits limits_;
  EngineOptions options_;
  int longest_ = 0;
  double mean_gap_us_ = 0;
  std::unique_ptr<SimServer> server_;
  std::vector<uint64_t> open_;
  size_t done_ = 0;
  uint64_t settled_at_ = 0;
};

// TANDEM_SEED=n runs that one alone, TANDEM_RUNS=n as many (make soak).
TEST(EngineSoakTest, NothingStarvesLeaksOrHangs) {
  const char* only = std::getenv("TANDEM_SEED");
  const char* runs = std::getenv("TANDEM_RUNS");
  const uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 0;
  const uint64_t count = runs != nullptr ? std::strtoull(runs, nullptr, 10) : kRuns;
  const uint64_t last = only != nullptr ? first + 1 : count;
  for (uint64_t seed = first; seed < last && !HasFailure(); ++seed) {
    SCOPED_TRACE("TANDEM_SEED=" + std::to_string(seed));
    Life(seed).Live();
  }
}

}  // namespace
}  // namespace tandem::gpu_worker
