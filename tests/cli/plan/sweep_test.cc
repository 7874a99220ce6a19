#include "cli/plan/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace tandem::cli {
namespace {

PlanSettings T4(const std::string& offload) {
  PlanFlags flags;
  flags.model = "llama-2-7b";
  flags.gpu = "t4";
  flags.gpu_kv_tokens = 864;
  flags.cpu_kv_tokens = 40'960;
  flags.prompt_lens = "300";
  flags.output_lens = "40";
  flags.requests = 200;
  flags.offload = offload;
  auto settings = ResolvePlanFlags(flags);
  EXPECT_TRUE(settings.ok()) << settings.status();
  return *std::move(settings);
}

// Every point of what the flags ask for, in order; none where that fails.
std::vector<PlanOutcome> Outcomes(const PlanFlags& flags) {
  const auto settings = ResolvePlanFlags(flags);
  EXPECT_TRUE(settings.ok()) << settings.status();
  auto outcomes = settings.ok() ? RunPoints(*settings, PointsOf(*settings)) : settings.status();
  EXPECT_TRUE(outcomes.ok()) << outcomes.status();
  return outcomes.ok() ? *std::move(outcomes) : std::vector<PlanOutcome>();
}

TEST(Sweep, PointsAreEveryCombinationWithModesTogether) {
  PlanSettings settings = T4("off,auto");
  settings.cpu_bandwidths = {10, 20};
  settings.rates = {1, 2, 3};
  const auto points = PointsOf(settings);
  ASSERT_EQ(points.size(), 12u);
  EXPECT_EQ(points[0].offload, "off");
  EXPECT_EQ(points[1].offload, "auto");
  EXPECT_EQ(points[1].rate, points[0].rate);
  EXPECT_EQ(points[11].cpu_gb_per_s, 20);
}

TEST(Sweep, ThreadsChangeNothing) {
  PlanSettings settings = T4("off,auto,all-cpu");
  settings.flags.jobs = 1;
  const auto one = RunPoints(settings, PointsOf(settings));
  settings.flags.jobs = 3;
  const auto three = RunPoints(settings, PointsOf(settings));
  ASSERT_TRUE(one.ok() && three.ok()) << one.status();
  for (size_t i = 0; i < one->size(); ++i) {
    EXPECT_EQ((*one)[i].point.offload, (*three)[i].point.offload);
    EXPECT_EQ((*one)[i].result.duration_us, (*three)[i].result.duration_us);
  }
}

TEST(Sweep, TheSustainedRateMeetsItsTargetAndAHigherOneDoesNot) {
  PlanSettings settings = T4("auto");
  settings.max_per_token_latency_s = 0.5;
  const auto found = FindRate(settings, PointsOf(settings)[0]);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->point.rate, 0);
  EXPECT_LE(found->result.per_token_us.Mean(), 5e5);
  PlanPoint higher = found->point;
  higher.rate *= 1.2;
  EXPECT_GT(RunPoint(settings, higher)->result.per_token_us.Mean(), 5e5);
}

// What offloading is for, on a GPU with room for some sequences: it may help, it must not cost.
TEST(Sweep, AutoNeverLosesToTheGpuAlone) {
  PlanFlags flags;
  flags.model = "llama-3.1-8b";
  flags.gpu = "a10g";
  flags.prompt_lens = "50,500,2000";
  flags.output_lens = "10,50,200";
  flags.length_spread = 0.1;
  flags.requests = 200;
  flags.cpu_bandwidths = "10,87";
  const std::vector<PlanOutcome> outcomes = Outcomes(flags);
  ASSERT_EQ(outcomes.size(), 36u);
  double best = 0;
  for (size_t i = 0; i + 1 < outcomes.size(); i += 2) {
    const PlanOutcome& off = outcomes[i];
    const PlanOutcome& automatic = outcomes[i + 1];
    ASSERT_EQ(off.result.output_tokens, automatic.result.output_tokens);
    const double gain = off.result.seconds() / automatic.result.seconds();
    EXPECT_GE(gain, 0.99) << off.point.prompt_len << "/" << off.point.output_len << " at "
                          << off.point.cpu_gb_per_s << " GB/s";
    best = std::max(best, gain);
  }
  EXPECT_GT(best, 1.1);
}

// Outputs so long that the CPU is the limit: what counts there is that the device is filled, and
// that its decodes do not wait for all of the CPU's.
TEST(Sweep, AutoKeepsUpWithThePublishedPolicyAtLongOutputs) {
  PlanFlags flags;
  flags.model = "llama-3.1-8b";
  flags.gpu = "g5.8xlarge";
  flags.cpu_kv_bytes = uint64_t{64} << 30;
  flags.prompt_lens = "50";
  flags.output_lens = "400,1000";
  flags.length_spread = 0.1;
  flags.requests = 500;
  flags.cpu_bandwidths = "30,87";
  flags.offload = "neo,auto";
  const std::vector<PlanOutcome> outcomes = Outcomes(flags);
  ASSERT_EQ(outcomes.size(), 8u);
  for (size_t i = 0; i + 1 < outcomes.size(); i += 2) {
    const PlanOutcome& neo = outcomes[i];
    const PlanOutcome& automatic = outcomes[i + 1];
    EXPECT_GE(neo.result.seconds() / automatic.result.seconds(), 0.98)
        << neo.point.output_len << " at " << neo.point.cpu_gb_per_s << " GB/s";
  }
}

// Prompts that come at once, are few and differ a lot: a tier that pays on average does not pay
// here.
TEST(Sweep, AFewUnevenPromptsAreLeftToTheDevice) {
  PlanFlags flags;
  flags.model = "llama-2-7b";
  flags.gpu = "a100";
  flags.gpu_kv_tokens = 25'212;
  flags.cpu_kv_bytes = uint64_t{64} << 30;
  flags.trace = TANDEM_TEST_DATA "/traces/azure_code_lengths.csv";
  flags.all_at_once = true;
  flags.requests = 108;
  const std::vector<PlanOutcome> outcomes = Outcomes(flags);
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_GE(outcomes[0].result.seconds() / outcomes[1].result.seconds(), 0.99);
}

// Prefill is all of the time with long prompts and short outputs. A decode that is put off for it
// keeps a place in the tier, and in the end there is no prefill to go with.
TEST(Sweep, DecodesGoWithPrefillHoweverLittleTheyAre) {
  PlanFlags flags;
  flags.model = "llama-2-7b";
  flags.gpu = "t4";
  flags.gpu_kv_tokens = 864;
  flags.cpu_kv_bytes = uint64_t{12} << 30;
  flags.cpu_bandwidths = "28";
  flags.prompt_lens = "370";
  flags.output_lens = "8";
  flags.concurrency = 64;
  flags.requests = 400;
  flags.offload = "neo,auto";
  const std::vector<PlanOutcome> outcomes = Outcomes(flags);
  ASSERT_EQ(outcomes.size(), 2u);
  const SimulationResult& neo = outcomes[0].result;
  const SimulationResult& automatic = outcomes[1].result;
  EXPECT_GT(neo.seconds() / automatic.seconds(), 1.1);
  EXPECT_LT(automatic.inter_token_us.Mean(), 0.75 * neo.inter_token_us.Mean());
}

// Where a few prompts fill the device and its steps, they are prefilled one after the other from
// the start: all at once they would go on to take turns with their decodes.
TEST(Sweep, PromptsAndDecodesDoNotTakeTurns) {
  PlanFlags flags;
  flags.model = "llama-2-7b";
  flags.gpu = "t4";
  flags.cpu_bandwidths = "50";
  flags.prompt_lens = "221";
  flags.output_lens = "4";
  flags.length_spread = 0.1;
  flags.requests = 200;
  const std::vector<PlanOutcome> outcomes = Outcomes(flags);
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_GT(outcomes[0].result.seconds() / outcomes[1].result.seconds(), 1.2);
}

TEST(Sweep, MoreBandwidthSustainsMore) {
  PlanSettings settings = T4("auto");
  PlanPoint point = PointsOf(settings)[0];
  point.cpu_gb_per_s = 20;
  const auto slow = RunPoint(settings, point);
  point.cpu_gb_per_s = 80;
  const auto fast = RunPoint(settings, point);
  ASSERT_TRUE(slow.ok() && fast.ok());
  EXPECT_LT(fast->result.duration_us, slow->result.duration_us);
}

TEST(Sweep, TheDeploymentMeetsTheRateAndASmallerOneDoesNot) {
  PlanSettings settings = T4("auto");
  settings.max_per_token_latency_s = 0.5;
  PlanPoint point = PointsOf(settings)[0];
  point.rate = 2;
  const auto answer = FindDeployment(settings, point);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_TRUE(answer->is_met);
  ASSERT_FALSE(answer->is_met_without_cpu);
  EXPECT_GT(answer->cpu_gb_per_s, 1);
  EXPECT_GT(answer->cpu_kv_tokens, 128);
  point.offload = "auto";
  point.cpu_gb_per_s = answer->cpu_gb_per_s;
  settings.cpu_kv_tokens = answer->cpu_kv_tokens;
  EXPECT_LE(RunPoint(settings, point)->result.per_token_us.Mean(), 5e5);
  point.rate = 0.01;
  EXPECT_TRUE(FindDeployment(settings, point)->is_met_without_cpu);
  point.rate = 1000;
  EXPECT_FALSE(FindDeployment(settings, point)->is_met);
}

}  // namespace
}  // namespace tandem::cli
