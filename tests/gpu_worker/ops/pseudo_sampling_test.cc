#include "gpu_worker/ops/pseudo_sampling.h"

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::gpu_worker {
namespace {

int32_t TokenAt(uint64_t seed, size_t position, std::vector<int32_t> forbidden = {},
                int32_t vocab = 1000) {
  SamplingParams params;
  params.seed = seed;
  const std::vector<int32_t> output(position, 0);
  SampleRequest request;
  request.params = &params;
  request.output_tokens = output;
  request.forbidden_tokens = forbidden;
  return PseudoSample(request, vocab).token;
}

TEST(PseudoSamplingTest, TokensFollowFromSeedAndPosition) {
  std::set<int32_t> tokens;
  for (size_t position = 0; position < 200; ++position) {
    const int32_t token = TokenAt(5, position);
    EXPECT_EQ(token, TokenAt(5, position));
    EXPECT_GE(token, 0);
    EXPECT_LT(token, 1000);
    tokens.insert(token);
  }
  EXPECT_GT(tokens.size(), 150u);
  EXPECT_NE(TokenAt(5, 0), TokenAt(6, 0));
}

TEST(PseudoSamplingTest, ForbiddenTokensAreNotChosen) {
  const int32_t first = TokenAt(9, 3, {}, 8);
  EXPECT_NE(TokenAt(9, 3, {first}, 8), first);
  std::vector<int32_t> all_but_five = {0, 1, 2, 3, 4, 6, 7};
  EXPECT_EQ(TokenAt(9, 3, all_but_five, 8), 5);
  all_but_five.push_back(5);
  EXPECT_EQ(TokenAt(9, 3, all_but_five, 8), 0);
}

TEST(PseudoSamplingTest, LogprobsAreThoseOfEqualLogits) {
  SamplingParams params;
  SampleRequest request;
  request.params = &params;
  request.num_logprobs = 3;
  const SampledToken sampled = PseudoSample(request, 100);
  ASSERT_TRUE(sampled.logprobs.has_value());
  EXPECT_EQ(sampled.logprobs->chosen.token_id, sampled.token);
  EXPECT_FLOAT_EQ(sampled.logprobs->chosen.logprob, std::log(0.01f));
  EXPECT_EQ(sampled.logprobs->top.size(), 3u);
  EXPECT_EQ(PseudoLogprobs(1, 9, 4).top.size(), 4u);
}

}  // namespace
}  // namespace tandem::gpu_worker
