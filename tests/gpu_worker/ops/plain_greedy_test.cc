#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "gpu_worker/ops/sampling.h"

namespace tandem::gpu_worker {
namespace {

TEST(IsPlainGreedyTest, AnythingElseThatIsWantedCounts) {
  SamplingParams params;
  params.temperature = 0.0f;
  SampleRequest request;
  request.params = &params;
  EXPECT_TRUE(IsPlainGreedy(request));
  const std::vector<int32_t> forbidden = {1};
  const std::vector<uint32_t> allowed = {1};
  const std::vector<std::function<void()>> changes = {
      [&] { params.temperature = 0.5f; },        [&] { params.repetition_penalty = 1.1f; },
      [&] { params.presence_penalty = 0.1f; },   [&] { params.frequency_penalty = -0.1f; },
      [&] { params.logit_bias = {{1, 2.0f}}; },  [&] { request.forbidden_tokens = forbidden; },
      [&] { request.allowed_tokens = allowed; }, [&] { request.num_logprobs = 0; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    params = {};
    params.temperature = 0.0f;
    request = {};
    request.params = &params;
    changes[i]();
    EXPECT_FALSE(IsPlainGreedy(request)) << i;
  }
}

}  // namespace
}  // namespace tandem::gpu_worker
