// Choosing tokens, of every implementation (sampler_under_test.h).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/gpu_worker/ops/sampler_under_test.h"

namespace tandem::gpu_worker {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

SampledToken Choose(const std::vector<float>& logits, const SampleRequest& request) {
  const ops::TokenChoice choice{&request, 0, request.num_logprobs};
  return ChooseAll(logits, std::span(&choice, 1))[0];
}

std::vector<int32_t> Tokens(const std::vector<float>& logits,
                            const std::vector<SampleRequest>& requests) {
  std::vector<ops::TokenChoice> choices;
  for (const SampleRequest& request : requests) {
    choices.push_back({&request, 0, -1});
  }
  std::vector<int32_t> tokens;
  for (const SampledToken& sampled : ChooseAll(logits, choices)) {
    tokens.push_back(sampled.token);
  }
  return tokens;
}

SampleRequest Request(const SamplingParams& params, std::span<const int32_t> output,
                      std::span<const int32_t> prompt) {
  SampleRequest request;
  request.params = &params;
  request.output_tokens = output;
  request.prompt_tokens = prompt;
  return request;
}

int32_t Sample(const std::vector<float>& logits, const SamplingParams& params,
               const std::vector<int32_t>& output = {}, const std::vector<int32_t>& prompt = {},
               const std::vector<int32_t>& forbidden = {}) {
  SampleRequest request = Request(params, output, prompt);
  request.forbidden_tokens = forbidden;
  return Choose(logits, request).token;
}

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

// Bits of `tokens` in a vocabulary of 64.
std::vector<uint32_t> Mask(const std::vector<int32_t>& tokens) {
  std::vector<uint32_t> mask(2);
  for (const int32_t token : tokens) {
    mask[static_cast<size_t>(token) / 32] |= 1u << (token % 32);
  }
  return mask;
}

std::vector<float> RandomLogits(size_t count, uint64_t seed, double deviation) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  std::vector<float> logits(count);
  for (float& logit : logits) {
    logit = static_cast<float>(normal(random));
  }
  return logits;
}

// What is left after the filters, in float64 and by full sorts: probability by token.
std::vector<double> ExactDistribution(const std::vector<float>& logits,
                                      const SamplingParams& params) {
  const double max = *std::max_element(logits.begin(), logits.end());
  std::vector<double> weights;
  for (const float logit : logits) {
    const double weight = std::exp((logit - max) / params.temperature);
    weights.push_back(weight >= params.min_p ? weight : 0.0);
  }
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size()) {
    const float lowest = logits[order[static_cast<size_t>(params.top_k) - 1]];
    for (const size_t i : order) {
      weights[i] = logits[i] >= lowest ? weights[i] : 0.0;
    }
  }
  double total = 0;
  for (const double weight : weights) {
    total += weight;
  }
  double before = 0;
  double kept = 0;
  for (const size_t i : order) {
    const double weight = weights[i];
    if (params.top_p < 1.0f && before >= params.top_p * total && before > 0) {
      weights[i] = 0;
    }
    before += weight;
    kept += weights[i];
  }
  for (double& weight : weights) {
    weight /= kept;
  }
  return weights;
}

// Whether tokens came as often as they should. Those expected fewer than 10 times share a cell.
void ExpectCounts(const std::vector<double>& exact, const std::vector<int>& counts) {
  double chi_square = 0;
  int cells = 0;
  double rest_expected = 0;
  int rest_count = 0;
  const auto add = [&](double expected, int count) {
    chi_square += (count - expected) * (count - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < exact.size(); ++i) {
    const double expected = exact[i] * NumDraws();
    EXPECT_TRUE(expected > 0 || counts[i] == 0) << "token " << i << " was filtered out";
    if (expected >= 10) {
      add(expected, counts[i]);
    } else {
      rest_expected += expected;
      rest_count += counts[i];
    }
  }
  if (rest_expected >= 1) {
    add(rest_expected, rest_count);
  }
  // Mean d, variance 2d; five deviations above happens by chance once in a million.
  const double degrees = std::max(cells - 1, 1);
  EXPECT_LT(chi_square, degrees + 5 * std::sqrt(2 * degrees)) << cells << " cells";
}

// Draws at successive positions and compares with the exact distribution.
void ExpectDistribution(const std::vector<float>& logits, const SamplingParams& params) {
  const std::vector<int32_t> output(static_cast<size_t>(NumDraws()), 0);
  std::vector<SampleRequest> requests;
  for (size_t i = 0; i < output.size(); ++i) {
    requests.push_back(Request(params, std::span(output).first(i), {}));
  }
  std::vector<int> counts(logits.size());
  for (const int32_t token : Tokens(logits, requests)) {
    ++counts[static_cast<size_t>(token)];
  }
  ExpectCounts(ExactDistribution(logits, params), counts);
}

TEST(SamplingTest, PlainSoftmax) {
  SamplingParams params;
  params.seed = 11;
  ExpectDistribution({1.0f, 2.0f, 3.0f, -1.0f, 0.0f, 2.5f}, params);
  ExpectDistribution(RandomLogits(1000, 1, 2.0), params);
}

TEST(SamplingTest, Temperature) {
  SamplingParams params;
  params.seed = 12;
  params.temperature = 0.6f;
  ExpectDistribution(RandomLogits(300, 2, 1.5), params);
  params.temperature = 2.5f;
  ExpectDistribution(RandomLogits(300, 2, 1.5), params);
}

TEST(SamplingTest, TopKTopPMinP) {
  const std::vector<float> logits = RandomLogits(700, 3, 1.5);
  SamplingParams params;
  params.seed = 13;
  params.top_k = 40;
  ExpectDistribution(logits, params);
  params.top_k = 0;
  params.top_p = 0.8f;
  ExpectDistribution(logits, params);
  params.top_p = 1.0f;
  params.min_p = 0.1f;
  ExpectDistribution(logits, params);
  params.top_k = 20;
  params.top_p = 0.7f;
  params.min_p = 0.01f;
  params.temperature = 1.7f;
  ExpectDistribution(logits, params);
  // More than the blocks of the first pass: the other way to the k-th largest.
  params = SamplingParams();
  params.top_k = 300;
  ExpectDistribution(logits, params);
}

// Bias, then penalties, then temperature, then the filters: another order gives another
// distribution.
TEST(SamplingTest, PenaltiesComeBeforeTemperatureAndFilters) {
  const std::vector<float> logits = RandomLogits(60, 4, 1.5);
  const std::vector<int32_t> prompt = {3, 4, 5};
  const std::vector<int32_t> output = {5, 6, 6, 7};
  SamplingParams params;
  params.temperature = 0.7f;
  params.top_k = 25;
  params.top_p = 0.95f;
  params.repetition_penalty = 1.4f;
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.8f;
  params.logit_bias = {{6, 2.5f}, {9, -3.0f}, {11, 1.0f}};
  std::vector<float> moved = logits;
  for (const auto& [token, bias] : params.logit_bias) {
    moved[static_cast<size_t>(token)] += bias;
  }
  for (const size_t token : {3u, 4u, 5u, 6u, 7u}) {
    moved[token] *= moved[token] > 0 ? 1 / 1.4f : 1.4f;
  }
  for (const auto& [token, count] : {std::pair(5u, 1), std::pair(6u, 2), std::pair(7u, 1)}) {
    moved[token] -= 0.5f * static_cast<float>(count) + 0.8f;
  }
  const std::vector<double> exact = ExactDistribution(moved, params);
  std::vector<int> counts(logits.size());
  std::vector<SamplingParams> seeded(static_cast<size_t>(NumDraws()), params);
  std::vector<SampleRequest> requests;
  for (size_t i = 0; i < seeded.size(); ++i) {
    seeded[i].seed = i;
    requests.push_back(Request(seeded[i], output, prompt));
  }
  for (const int32_t token : Tokens(logits, requests)) {
    ++counts[static_cast<size_t>(token)];
  }
  ExpectCounts(exact, counts);
}

TEST(SamplingTest, TopKKeepsTies) {
  SamplingParams params;
  params.top_k = 2;
  ExpectDistribution({3.0f, 2.0f, 2.0f, 2.0f, 1.0f}, params);
}

TEST(SamplingTest, TopPKeepsTheLowestIdsOfATie) {
  SamplingParams params;
  params.top_p = 0.5f;
  std::set<int32_t> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    params.seed = seed;
    seen.insert(Sample({0.0f, 0.0f, 0.0f, 0.0f}, params));
  }
  EXPECT_EQ(seen, (std::set<int32_t>{0, 1}));
}

TEST(SamplingTest, TheBestTokenSurvivesEveryFilter) {
  const std::vector<float> logits = {0.5f, 4.0f, 1.0f};
  for (const auto& change : std::vector<std::function<void(SamplingParams*)>>{
           [](SamplingParams* p) { p->top_p = 0.0f; }, [](SamplingParams* p) { p->top_p = 1e-9f; },
           [](SamplingParams* p) { p->top_k = 1; }, [](SamplingParams* p) { p->min_p = 1.0f; },
           [](SamplingParams* p) { p->temperature = 1e-4f; }}) {
    SamplingParams params;
    change(&params);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      params.seed = seed;
      EXPECT_EQ(Sample(logits, params), 1);
    }
  }
}

TEST(SamplingTest, GreedyTakesTheLowestIdOfATie) {
  std::vector<float> logits(100, 1.0f);
  logits[37] = logits[21] = logits[99] = 2.0f;
  EXPECT_EQ(Sample(logits, Greedy()), 21);
  SamplingParams params;
  params.temperature = 9e-6f;
  EXPECT_EQ(Sample(logits, params), 21);
}

TEST(SamplingTest, NothingUsableGivesTokenZero) {
  for (const float value : {kNan, -kInfinity}) {
    const std::vector<float> logits(50, value);
    EXPECT_EQ(Sample(logits, Greedy()), 0);
    EXPECT_EQ(Sample(logits, SamplingParams()), 0);
    SamplingParams filtered;
    filtered.top_k = 5;
    filtered.top_p = 0.5f;
    filtered.min_p = 0.1f;
    EXPECT_EQ(Sample(logits, filtered), 0);
  }
  EXPECT_EQ(Sample({1.0f, 2.0f}, Greedy(), {}, {}, {0, 1}), 0);
}

TEST(SamplingTest, ExtremeLogits) {
  SamplingParams params;
  params.top_p = 0.9f;
  params.top_k = 2;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    params.seed = seed;
    EXPECT_EQ(Sample({kNan, -kInfinity, kInfinity, 3e38f / 2}, params), 2);
    EXPECT_EQ(Sample({kNan, -3e38f, 3e38f, kNan}, params), 2);
    EXPECT_EQ(Sample({kNan, -kInfinity, -200.0f, -300.0f}, params), 2);
  }
  params.temperature = kInfinity;
  const int32_t token = Sample({1.0f, 2.0f}, params);
  EXPECT_TRUE(token == 0 || token == 1);
}

TEST(SamplingTest, ForbiddenTokensAndBias) {
  EXPECT_EQ(Sample({1.0f, 5.0f, 3.0f}, Greedy(), {}, {}, {1}), 2);
  EXPECT_EQ(Sample({1.0f, 5.0f, 3.0f}, Greedy(), {}, {}, {1, 2, 7, -1}), 0);
  SamplingParams params = Greedy();
  params.logit_bias = {{0, 10.0f}, {1, -100.0f}, {55, 1.0f}, {-3, 1.0f}};
  EXPECT_EQ(Sample({1.0f, 5.0f, 3.0f}, params), 0);
  params.logit_bias = {{1, 100.0f}};
  EXPECT_EQ(Sample({1.0f, 5.0f, 3.0f}, params, {}, {}, {1}), 2) << "bias lifts no ban";
}

TEST(SamplingTest, RepetitionPenaltyDividesOrMultipliesOncePerToken) {
  SamplingParams params = Greedy();
  params.repetition_penalty = 2.0f;
  // 4 / 2 = 2 < 3, once only although it occurs in prompt and output.
  EXPECT_EQ(Sample({4.0f, 3.0f, 1.9f}, params, {0, 0}, {0}), 1);
  EXPECT_EQ(Sample({4.0f, 1.5f, 1.9f}, params, {0, 0}, {0}), 0);
  // -1 * 2 = -2 < -1.5.
  EXPECT_EQ(Sample({-1.0f, -1.5f}, params, {}, {0}), 1);
  EXPECT_EQ(Sample({4.0f, 3.0f}, params, {}, {-5, 99}), 0);
}

TEST(SamplingTest, FrequencyAndPresencePenaltiesCountTheOutputOnly) {
  SamplingParams params = Greedy();
  params.frequency_penalty = 0.5f;
  EXPECT_EQ(Sample({3.0f, 2.25f}, params, {0}, {0, 0, 0}), 0);
  EXPECT_EQ(Sample({3.0f, 2.25f}, params, {0, 0}, {}), 1);
  params = Greedy();
  params.presence_penalty = 0.8f;
  EXPECT_EQ(Sample({3.0f, 2.1f}, params, {0, 0, 0}, {}), 0);
  EXPECT_EQ(Sample({3.0f, 2.3f}, params, {0}, {}), 1);
  params.presence_penalty = -1.0f;
  EXPECT_EQ(Sample({3.0f, 2.3f}, params, {1}, {}), 1) << "a negative one encourages";
}

TEST(SamplingTest, LogprobsAreThoseOfTheModelsLogits) {
  const std::vector<float> logits = {1.0f, 5.0f, 3.0f, 3.0f};
  SamplingParams params = Greedy();
  params.logit_bias = {{1, -50.0f}};
  params.repetition_penalty = 3.0f;
  const std::vector<int32_t> prompt = {3};
  SampleRequest request;
  request.params = &params;
  request.prompt_tokens = prompt;
  request.num_logprobs = 2;
  const SampledToken sampled = Choose(logits, request);
  EXPECT_EQ(sampled.token, 2);
  ASSERT_TRUE(sampled.logprobs.has_value());
  const double log_sum = std::log(std::exp(1.0) + std::exp(5.0) + 2 * std::exp(3.0));
  EXPECT_NEAR(sampled.logprobs->chosen.logprob, 3.0 - log_sum, 1e-6);
  EXPECT_EQ(sampled.logprobs->chosen.rank, 2);
  ASSERT_EQ(sampled.logprobs->top.size(), 2u);
  EXPECT_EQ(sampled.logprobs->top[0].token_id, 1);
  EXPECT_NEAR(sampled.logprobs->top[0].logprob, 5.0 - log_sum, 1e-6);
  EXPECT_EQ(sampled.logprobs->top[1].token_id, 2) << "the lower id of a tie";
  request.num_logprobs = -1;
  EXPECT_FALSE(Choose(logits, request).logprobs.has_value());
}

TEST(SamplingTest, LogprobsAgreesWithFullSortInFloat64) {
  for (const size_t vocab : {1u, 5u, 63u, 64u, 65u, 1000u, 5000u}) {
    const std::vector<float> logits = RandomLogits(vocab, vocab, 6.0);
    double sum = 0;
    for (const float logit : logits) {
      sum += std::exp(static_cast<double>(logit));
    }
    std::vector<int32_t> order(vocab);
    for (size_t i = 0; i < vocab; ++i) {
      order[i] = static_cast<int32_t>(i);
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const int32_t token = order[vocab / 2];
    std::vector<ops::TokenChoice> choices;
    for (const int32_t num_top : {0, 1, 5, 20, 200}) {
      choices.push_back({nullptr, token, num_top});
    }
    const std::vector<SampledToken> sampled = ChooseAll(logits, choices);
    for (size_t row = 0; row < choices.size(); ++row) {
      const TokenLogprobs& result = *sampled[row].logprobs;
      EXPECT_EQ(sampled[row].token, token);
      EXPECT_EQ(result.chosen.rank, static_cast<int32_t>(vocab / 2) + 1);
      EXPECT_NEAR(result.chosen.logprob, logits[static_cast<size_t>(token)] - std::log(sum), 2e-6);
      ASSERT_EQ(result.top.size(), std::min(static_cast<size_t>(choices[row].num_logprobs), vocab));
      for (size_t i = 0; i < result.top.size(); ++i) {
        EXPECT_EQ(result.top[i].token_id, order[i]);
        EXPECT_EQ(result.top[i].rank, static_cast<int32_t>(i) + 1);
      }
    }
  }
}

TEST(SamplingTest, OnlyAllowedTokensAreChosen) {
  std::vector<float> logits = RandomLogits(64, 3, 4.0);
  logits[9] = 100.0f;
  const std::vector<uint32_t> mask = Mask({3, 31, 32, 60});
  std::set<int32_t> seen;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SamplingParams params;
    params.temperature = 5.0f;
    params.seed = seed;
    params.logit_bias = {{9, 50.0f}};
    SampleRequest request;
    request.params = &params;
    request.allowed_tokens = mask;
    seen.insert(Choose(logits, request).token);
  }
  EXPECT_EQ(seen, (std::set<int32_t>{3, 31, 32, 60}));
}

TEST(SamplingTest, LogprobsAreOfTheAllowedTokensAndBeforeEverythingElse) {
  std::vector<float> logits(64);
  logits[9] = 100.0f;
  logits[31] = std::log(3.0f);
  const std::vector<uint32_t> mask = Mask({3, 31});
  SamplingParams params = Greedy();
  params.temperature = 5.0f;
  params.logit_bias = {{3, 90.0f}};
  SampleRequest request;
  request.params = &params;
  request.allowed_tokens = mask;
  request.num_logprobs = 3;
  const SampledToken sampled = Choose(logits, request);
  EXPECT_EQ(sampled.token, 3);
  EXPECT_NEAR(sampled.logprobs->chosen.logprob, std::log(0.25f), 1e-6);
  EXPECT_EQ(sampled.logprobs->chosen.rank, 2);
  ASSERT_EQ(sampled.logprobs->top.size(), 3u);
  EXPECT_EQ(sampled.logprobs->top[0].token_id, 31);
  EXPECT_NEAR(sampled.logprobs->top[0].logprob, std::log(0.75f), 1e-6);
  EXPECT_EQ(sampled.logprobs->top[2].logprob, -kInfinity);
}

TEST(SamplingTest, ForbiddenTokensYieldWhereNothingElseIsAllowed) {
  const SamplingParams params = Greedy();
  const std::vector<uint32_t> mask = Mask({5, 40});
  std::vector<int32_t> forbidden = {5, 5, 7};
  SampleRequest request;
  request.params = &params;
  request.allowed_tokens = mask;
  request.forbidden_tokens = forbidden;
  std::vector<float> logits(64);
  logits[5] = 2.0f;
  EXPECT_EQ(Choose(logits, request).token, 40);
  forbidden.push_back(40);
  request.forbidden_tokens = forbidden;
  logits.assign(64, 0.0f);
  logits[40] = 1.0f;
  EXPECT_EQ(Choose(logits, request).token, 40);
}

TEST(SamplingTest, AModelThatSaysNothingStillGivesAnAllowedToken) {
  const SamplingParams params = Greedy();
  const std::vector<uint32_t> mask = Mask({33, 50});
  SampleRequest request;
  request.params = &params;
  request.allowed_tokens = mask;
  std::vector<float> logits(64, kNan);
  EXPECT_EQ(Choose(logits, request).token, 33);
}

}  // namespace
}  // namespace tandem::gpu_worker
