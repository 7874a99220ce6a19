#include "gpu_worker/ops/sampling.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "gpu_worker/ops/fast_exp.h"
#include "gpu_worker/ops/philox.h"
#include "gtest/gtest.h"
#include "tests/gpu_worker/ops/sampler_under_test.h"

namespace tandem::gpu_worker {

std::vector<SampledToken> ChooseAll(const std::vector<float>& logits,
                                    std::span<const ops::TokenChoice> choices) {
  std::vector<SampledToken> sampled;
  std::vector<float> scratch;
  for (const ops::TokenChoice& choice : choices) {
    if (choice.request == nullptr) {
      sampled.push_back({choice.token, LogprobsOf(logits, choice.token, choice.num_logprobs)});
      continue;
    }
    scratch = logits;
    SampleRequest request = *choice.request;
    request.num_logprobs = choice.num_logprobs;
    sampled.push_back(SampleRow(scratch, request));
  }
  return sampled;
}

int NumDraws() { return 20'000; }

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(PhiloxTest, KnownAnswers) {
  // From the reference implementation's known-answer file (Random123, philox4x32, 10 rounds).
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, ~uint64_t{0}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(PhiloxTest, DrawsDependOnSeedAndPositionAlone) {
  std::set<double> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (uint64_t position = 0; position < 50; ++position) {
      const double value = UniformAt(seed, position);
      EXPECT_GE(value, 0.0);
      EXPECT_LT(value, 1.0);
      EXPECT_EQ(value, UniformAt(seed, position));
      seen.insert(value);
    }
  }
  EXPECT_EQ(seen.size(), 2500u);
}

TEST(FastExpTest, IsCloseToTheLibrary) {
  for (int i = -88000; i <= 87000; ++i) {
    const float x = static_cast<float>(-i) / 1000.0f;
    const double wanted = std::exp(static_cast<double>(x));
    ASSERT_NEAR(static_cast<double>(BoundedExp(x)) / wanted, 1.0, 3e-7) << x;
  }
  EXPECT_EQ(BoundedExp(0.0f), 1.0f);
}

TEST(LogprobsOfTest, OddInputsCrashNothing) {
  const std::vector<float> nans(100, kNan);
  EXPECT_EQ(LogprobsOf(nans, 3, 5).chosen.logprob, -kInfinity);
  EXPECT_EQ(LogprobsOf(nans, 3, 5).top.size(), 5u);
  const std::vector<float> mixed = {kNan, 1.0f, kInfinity, -kInfinity};
  const TokenLogprobs result = LogprobsOf(mixed, 2, 4);
  EXPECT_EQ(result.chosen.rank, 1);
  EXPECT_NEAR(result.chosen.logprob, 0.0f, 1e-6);
  EXPECT_EQ(result.top.front().token_id, 2);
  EXPECT_EQ(LogprobsOf(mixed, 77, 0).chosen.logprob, -kInfinity);
  EXPECT_EQ(LogprobsOf({}, 0, 5).top.size(), 0u);
}

}  // namespace
}  // namespace tandem::gpu_worker
