#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/gpu_worker/engine/sim_server.h"

namespace tandem::gpu_worker {
namespace {

EngineOptions Options(OffloadPolicy policy) {
  EngineOptions options;
  options.offload = policy;
  options.max_waiting = 100'000;
  return options;
}

struct Machine {
  MeasuredRates rates;
  RunnerLimits limits;
  double cpu_share = 1;  // of the CPU worker's time that is left to it
};
Machine T4(double cpu_gb_per_s) { return {T4Rates(cpu_gb_per_s), SimLimits(864, 40'960)}; }
Machine A10g(double cpu_gb_per_s) { return {A10gRates(cpu_gb_per_s), SimLimits(20'000, 200'000)}; }

std::unique_ptr<SimServer> Server(const Machine& machine, OffloadPolicy policy) {
  const std::shared_ptr<const CostModel> model = MakeRooflineCostModel(machine.rates);
  return std::make_unique<SimServer>(Options(policy), machine.limits, model, model);
}

// Output tokens per second of `count` equal requests that come all at once.
double TokensPerSecond(const Machine& machine, OffloadPolicy policy, int32_t prompt, int32_t output,
                       int count) {
  const auto server = Server(machine, policy);
  server->set_cpu_share(machine.cpu_share);
  const double start_us = server->now_us();
  for (int i = 0; i < count; ++i) {
    // Lengths within a tenth, so that sequences do not all end together.
    const int32_t spread = (i * 7919) % 21 - 10;
    server->Submit(prompt + prompt * spread / 100, std::max(1, output + output * spread / 100));
  }
  EXPECT_TRUE(server->RunToEnd());
  return static_cast<double>(server->tokens()) / (server->now_us() - start_us) * 1e6;
}

TEST(EngineSimTest, MemoryBoundDevicesGainALot) {
  const Machine machine = T4(40);
  const double off = TokensPerSecond(machine, OffloadPolicy::kOff, 350, 60, 60);
  const double neo = TokensPerSecond(machine, OffloadPolicy::kNeo, 350, 60, 60);
  const double automatic = TokensPerSecond(machine, OffloadPolicy::kAuto, 350, 60, 60);
  std::printf("off %.1f neo %.1f auto %.1f tokens/s\n", off, neo, automatic);
  EXPECT_GT(automatic, 3.0 * off);
  EXPECT_GT(automatic, neo);
}

TEST(EngineSimTest, NeverSlowerThanTheDeviceAlone) {
  for (const Machine& machine : {T4(10), T4(40), A10g(20), A10g(100)}) {
    for (const int32_t prompt : {50, 500}) {
      for (const int32_t output : {10, 100, 300}) {
        const double off = TokensPerSecond(machine, OffloadPolicy::kOff, prompt, output, 60);
        const double automatic = TokensPerSecond(machine, OffloadPolicy::kAuto, prompt, output, 60);
        EXPECT_GT(automatic, 0.99 * off) << prompt << " in, " << output << " out, CPU "
                                         << machine.rates.cpu_attention_bytes_per_us / 1e3
                                         << " GB/s, weights " << machine.rates.weight_bytes;
      }
    }
  }
}

// Long prompts with short outputs before, then short prompts with long outputs: nobody of these has
// ended yet, but they are planned for as what they are.
TEST(EngineSimTest, AnotherKindOfLoadIsSeenBeforeItsFirstEnd) {
  const auto tokens_per_second = [](bool another_before) {
    const auto server = Server(T4(40), OffloadPolicy::kAuto);
    for (int i = 0; another_before && i < 100; ++i) {
      server->Submit(370, 8);
    }
    EXPECT_TRUE(server->RunToEnd());
    for (int i = 0; i < 64; ++i) {
      server->Submit(16, 400);
    }
    const int64_t before = server->tokens();
    server->RunUntil(server->now_us() + 15e6);
    return static_cast<double>(server->tokens() - before) / 15;
  };
  const double alone = tokens_per_second(false);
  EXPECT_GT(tokens_per_second(true), 0.95 * alone) << alone;
}

// Prefill that comes with the reading of the weights, where few sequences fit: next to
// no CPU tier, and none at all.
TEST(EngineSimTest, TheDeviceAloneGainsByItsPace) {
  for (const int64_t cpu_tokens : {128, 0}) {
    const Machine machine = {A10gRates(100), SimLimits(4'000, cpu_tokens)};
    const double off = TokensPerSecond(machine, OffloadPolicy::kOff, 400, 40, 100);
    const double paced = TokensPerSecond(machine, OffloadPolicy::kAuto, 400, 40, 100);
    EXPECT_GT(paced, 1.05 * off) << cpu_tokens;
  }
}

// What the worker predicts for CPU attention stays wrong by six: trials become rare.
TEST(EngineSimTest, ACpuThatStaysSlowCostsLittle) {
  Machine machine = A10g(100);
  const double off = TokensPerSecond(machine, OffloadPolicy::kOff, 1'000, 200, 400);
  machine.cpu_share = 1.0 / 6;
  const double automatic = TokensPerSecond(machine, OffloadPolicy::kAuto, 1'000, 200, 400);
  machine.limits.num_cpu_blocks = 0;
  const double alone = TokensPerSecond(machine, OffloadPolicy::kAuto, 1'000, 200, 400);
  EXPECT_GT(automatic, off);
  EXPECT_GT(automatic, 0.95 * alone);
}

// A long prompt alone, then a short one that comes two seconds later.
TEST(EngineSimTest, AShortPromptDoesNotWaitForALongOne) {
  Machine machine = A10g(100);
  machine.limits = SimLimits(200'000, 200'000);
  const auto server = Server(machine, OffloadPolicy::kAuto);
  const uint64_t long_id = server->Submit(100'000, 10);
  server->RunUntil(server->now_us() + 2e6);
  ASSERT_EQ(server->times(long_id).tokens, 0);
  const uint64_t short_id = server->Submit(101, 5);
  int steps = 0;
  while (server->times(short_id).tokens == 0 && steps < 100) {
    server->Step();
    ++steps;
  }
  EXPECT_LE(steps, 4);
  EXPECT_EQ(server->times(long_id).tokens, 0) << "the long one is still being read";
  EXPECT_TRUE(server->RunToEnd());
}

// Several long prompts at once leave room for a short one all the same.
TEST(EngineSimTest, AShortPromptDoesNotWaitForThreeLongOnes) {
  Machine machine = A10g(100);
  machine.limits = SimLimits(400'000, 400'000);
  const auto server = Server(machine, OffloadPolicy::kAuto);
  for (int i = 0; i < 3; ++i) {
    server->Submit(100'000, 10);
  }
  server->RunUntil(server->now_us() + 2e6);
  const uint64_t short_id = server->Submit(101, 5);
  int steps = 0;
  while (server->times(short_id).tokens == 0 && steps < 100) {
    server->Step();
    ++steps;
  }
  EXPECT_LE(steps, 4);
}

// Tokens of `sequences` decodes while a long prompt is read beside them, against the same time
// without it.
void DecodesKeepHalfTheirSpeed(const Machine& machine, int sequences, int32_t prompt) {
  const auto server = Server(machine, OffloadPolicy::kAuto);
  const auto alone = Server(machine, OffloadPolicy::kAuto);
  for (SimServer* one : {server.get(), alone.get()}) {
    for (int i = 0; i < sequences; ++i) {
      one->Submit(200, 100'000);
    }
    one->RunUntil(5e6);
  }
  const int64_t before = server->tokens();
  const double start_us = server->now_us();
  const uint64_t long_id = server->Submit(prompt, 10);
  while (server->times(long_id).tokens == 0 && server->now_us() < start_us + 900e6) {
    server->Step();
  }
  ASSERT_GT(server->times(long_id).tokens, 0);
  const double took_us = server->now_us() - start_us;
  const int64_t alone_before = alone->tokens();
  const double alone_us = alone->now_us();
  alone->RunUntil(alone_us + took_us);
  const double beside = static_cast<double>(server->tokens() - before);
  const double without = static_cast<double>(alone->tokens() - alone_before);
  std::printf("%.0f tokens beside the prompt, %.0f without it, in %.1f s\n", beside, without,
              took_us / 1e6);
  EXPECT_GE(beside, 0.5 * without);
}

TEST(EngineSimTest, DecodesKeepHalfTheirSpeedBesideALongPrompt) {
  Machine machine = A10g(100);
  machine.limits = SimLimits(400'000, 400'000);
  DecodesKeepHalfTheirSpeed(machine, 8, 100'000);
}

// The prompt fits the CPU pool only, and what decodes outgrows the device's.
TEST(EngineSimTest, CpuDecodesKeepHalfTheirSpeedBesideALongPrompt) {
  Machine machine = T4(40);
  machine.limits = SimLimits(4'000, 400'000);
  DecodesKeepHalfTheirSpeed(machine, 12, 40'000);
}

// Measured over predicted of the last step that used the CPU.
double CpuRatio(SimServer& server) {
  for (int step = 0; step < 500; ++step) {
    server.Step();
    for (const auto& [term, ratio] : server.core().last_observation().measured_over_predicted) {
      if (std::string(term) == "cpu_decode") {
        return ratio;
      }
    }
  }
  return 0;
}

// A neighbour takes half of the CPU's cores, and leaves again: either is known two seconds later.
TEST(EngineSimTest, ANeighbourOnTheCpuIsNoticedAndForgotten) {
  const auto server = Server(T4(40), OffloadPolicy::kAuto);
  for (int i = 0; i < 60; ++i) {
    server->Submit(350, 2'000);
  }
  server->RunUntil(server->now_us() + 20e6);
  EXPECT_NEAR(CpuRatio(*server), 1.0, 0.1);
  server->set_cpu_share(0.5);
  EXPECT_NEAR(CpuRatio(*server), 2.0, 0.3);
  server->RunUntil(server->now_us() + 2e6);
  EXPECT_NEAR(CpuRatio(*server), 1.0, 0.15);
  server->set_cpu_share(1.0);
  EXPECT_NEAR(CpuRatio(*server), 0.5, 0.15);
  server->RunUntil(server->now_us() + 2e6);
  EXPECT_NEAR(CpuRatio(*server), 1.0, 0.15);
}

// Mean of measured over predicted time of the next steps.
double StepRatio(SimServer& server, int steps) {
  double sum = 0;
  for (int step = 0; step < steps; ++step) {
    server.Step();
    for (const auto& [term, ratio] : server.core().last_observation().measured_over_predicted) {
      sum += std::string(term) == "total" ? ratio : 0.0;
    }
  }
  return sum / steps;
}

// What is believed about launches, or how far device and CPU run side by side, is wrong in either
// direction: known two seconds later.
TEST(EngineSimTest, WrongLaunchesAndOverlapAreCorrected) {
  MeasuredRates quick = T4Rates(40);
  MeasuredRates slow = quick;
  slow.launch_us = quick.launch_us + 300;
  MeasuredRates serial = quick;
  serial.overlap = 0.2;
  struct Case {
    const char* name;
    OffloadPolicy policy;
    MeasuredRates believed, truth;
  };
  for (const Case& c : {Case{"slower launches", OffloadPolicy::kOff, quick, slow},
                        Case{"quicker launches", OffloadPolicy::kOff, slow, quick},
                        Case{"less overlap", OffloadPolicy::kAsymmetric, quick, serial},
                        Case{"more overlap", OffloadPolicy::kAsymmetric, serial, quick}}) {
    SimServer server(Options(c.policy), SimLimits(864, 40'960), MakeRooflineCostModel(c.believed),
                     MakeRooflineCostModel(c.truth));
    for (int i = 0; i < 60; ++i) {
      server.Submit(100, 2'000);
    }
    server.Step();
    server.Step();  // prompts are read
    server.Step();
    const double wrong = StepRatio(server, 3);
    EXPECT_GT(std::abs(wrong - 1), 0.02) << c.name << ": nothing to correct";
    server.RunUntil(server.now_us() + 5e6);
    EXPECT_LT(std::abs(StepRatio(server, 20) - 1), 0.25 * std::abs(wrong - 1) + 0.005) << c.name;
  }
}

// The inter-token target bounds steps beside ordinary prompts.
TEST(EngineSimTest, StepsKeepTheInterTokenTarget) {
  const Machine machine = A10g(100);
  EngineOptions options = Options(OffloadPolicy::kAuto);
  options.max_inter_token_latency_us = 100'000;
  const std::shared_ptr<const CostModel> model = MakeRooflineCostModel(machine.rates);
  SimServer server(options, machine.limits, model, model);
  const uint64_t watched = server.Submit(200, 300);
  for (int i = 0; i < 20; ++i) {
    server.RunUntil(server.now_us() + 200e3);
    server.Submit(900, 20);
  }
  EXPECT_TRUE(server.RunToEnd());
  EXPECT_LE(server.times(watched).longest_gap_us, 100'000);
}

}  // namespace
}  // namespace tandem::gpu_worker
