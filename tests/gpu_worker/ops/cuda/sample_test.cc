#include <algorithm>
#include <cmath>
#include <limits>

#include "gpu_worker/ops/cuda/sample_rows.h"
#include "gpu_worker/ops/sampling.h"
#include "tests/gpu_worker/ops/cuda/shim_launcher.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A batch of requests on the same logits, against the host's sampler.
void ExpectAsOnTheHost(const std::vector<float>& logits,
                       const std::vector<SampleRequest>& requests) {
  ShimLauncher launcher;
  const auto vocab = static_cast<int32_t>(logits.size());
  const auto count = static_cast<int32_t>(requests.size());
  std::vector<float> batch;
  for (int32_t i = 0; i < count; ++i) {
    batch.insert(batch.end(), logits.begin(), logits.end());
  }
  SampleBatch sample = MakeSampleBatch(requests, vocab);
  for (size_t i = 0; i < sample.rows.size(); ++i) {
    const int64_t begin = sample.mask_begins[i];
    sample.rows[i].allowed = begin >= 0 ? sample.masks.data() + begin : nullptr;
  }
  Guarded in(batch);
  Guarded scratch(batch.size() * sizeof(float));
  Guarded tokens(requests.size() * sizeof(int32_t));
  ASSERT_TRUE(Sample(launcher, nullptr,
                     {in.as<float>(), scratch.as<float>(), sample.rows.data(), sample.edits.data(),
                      tokens.as<int32_t>(), count, vocab})
                  .ok());
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<float> row = logits;
    EXPECT_EQ(tokens.as<int32_t>()[i], SampleRow(row, requests[i]).token) << "row " << i;
  }
  EXPECT_EQ(std::memcmp(in.data(), batch.data(), in.bytes()), 0) << "the logits stay";
}

class CudaSampleTest : public testing::Test {
 protected:
  // Eight seeds of a request, among tokens that occurred before.
  void Check(const std::vector<float>& logits, const SamplingParams& params) {
    std::vector<SamplingParams> seeded(8, params);
    std::vector<SampleRequest> requests;
    for (size_t i = 0; i < seeded.size(); ++i) {
      seeded[i].seed = random_();
      SampleRequest request;
      request.params = &seeded[i];
      request.prompt_tokens = prompt_;
      request.output_tokens = std::span(output_).first(i % (output_.size() + 1));
      request.forbidden_tokens = forbidden_;
      request.allowed_tokens = allowed_;
      requests.push_back(request);
    }
    ExpectAsOnTheHost(logits, requests);
  }

  std::mt19937 random_{23};
  std::vector<int32_t> prompt_ = {3, 4, 5};
  std::vector<int32_t> output_ = {5, 6, 6, 7};
  std::vector<int32_t> forbidden_;
  std::vector<uint32_t> allowed_;
};

TEST_F(CudaSampleTest, FiltersPenaltiesAndDrawsAreTheHosts) {
  for (const size_t vocab : {1u, 60u, 700u, 5000u}) {
    const auto logits = RandomFloats(random_, vocab, 2.0f);
    SamplingParams params;
    Check(logits, params);
    params.temperature = 0.7f;
    params.top_k = 40;
    Check(logits, params);
    params.top_k = 0;
    params.top_p = 0.8f;
    Check(logits, params);
    params.min_p = 0.05f;
    params.top_k = 300;
    params.temperature = 1.6f;
    Check(logits, params);
    params.repetition_penalty = 1.4f;
    params.frequency_penalty = 0.5f;
    params.presence_penalty = 0.8f;
    params.logit_bias = {{6, 2.5f}, {9, -3.0f}, {11, 1.0f}, {-1, 5.0f}, {100000, 5.0f}};
    Check(logits, params);
    params.temperature = 0.0f;
    Check(logits, params);
  }
}

TEST_F(CudaSampleTest, TiesAtEveryBorder) {
  std::vector<float> logits(300, 0.0f);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] = static_cast<float>(i % 4);
  }
  SamplingParams params;
  for (const float top_p : {0.0f, 1e-9f, 0.3f, 0.5f, 0.9f, 1.0f}) {
    for (const int32_t top_k : {0, 1, 2, 100}) {
      params.top_p = top_p;
      params.top_k = top_k;
      Check(logits, params);
    }
  }
  params.temperature = 0.0f;
  Check(logits, params);
}

TEST_F(CudaSampleTest, ForbiddenAndAllowedTokens) {
  const auto logits = RandomFloats(random_, 64, 2.0f);
  forbidden_ = {0, 1, 2, 63};
  SamplingParams params;
  params.temperature = 3.0f;
  Check(logits, params);
  allowed_ = {0x80000008u, 0x10000001u};
  forbidden_ = {3};
  Check(logits, params);
  forbidden_ = {3, 31, 32, 60};  // all that is allowed: the bans yield
  Check(logits, params);
  allowed_ = {0x8u};  // covers some of the vocabulary; the rest is not allowed
  forbidden_.clear();
  Check(logits, params);
}

TEST_F(CudaSampleTest, OddLogits) {
  SamplingParams params;
  params.top_p = 0.9f;
  params.top_k = 2;
  prompt_.clear();
  output_.clear();
  Check({kNan, -kInfinity, kInfinity, 3e38f / 2}, params);
  Check({kNan, -3e38f, 3e38f, kNan}, params);
  Check({kNan, -kInfinity, -200.0f, -300.0f}, params);
  Check({kNan, kNan, -kInfinity}, params);
  params.temperature = kInfinity;
  Check({1.0f, 2.0f}, params);
  allowed_ = {0u, 0x40002u};
  Check(std::vector<float>(64, kNan), params);
}

// The logarithm of a sum in units of 2^-40 is as close as float32 shows.
void ExpectLogprobsAsOnTheHost(const std::vector<float>& logits, int32_t token, int32_t num_top) {
  ShimLauncher launcher;
  Guarded in(logits);
  Guarded chosen(std::vector<int32_t>{token});
  const auto top = static_cast<size_t>(num_top);
  Guarded logprobs((1 + top) * sizeof(float));
  Guarded rank(sizeof(int32_t));
  Guarded top_ids(top * sizeof(int32_t));
  ASSERT_TRUE(
      Logprobs(launcher, nullptr,
               {in.as<float>(), chosen.as<int32_t>(), logprobs.as<float>(), rank.as<int32_t>(),
                top_ids.as<int32_t>(), 1, static_cast<int32_t>(logits.size()), num_top})
          .ok());
  const TokenLogprobs expected = LogprobsOf(logits, token, num_top);
  const auto expect_near = [](float got, float wanted) {
    if (std::isinf(wanted)) {
      EXPECT_EQ(got, wanted);
    } else {
      EXPECT_NEAR(got, wanted, 2e-6 * (1 + std::abs(wanted)));
    }
  };
  expect_near(logprobs.as<float>()[0], expected.chosen.logprob);
  EXPECT_EQ(*rank.as<int32_t>(), expected.chosen.rank);
  for (size_t i = 0; i < top; ++i) {
    if (i >= expected.top.size()) {
      EXPECT_EQ(top_ids.as<int32_t>()[i], -1);
      continue;
    }
    EXPECT_EQ(top_ids.as<int32_t>()[i], expected.top[i].token_id) << i;
    expect_near(logprobs.as<float>()[1 + i], expected.top[i].logprob);
  }
}

TEST(CudaLogprobsTest, AreTheHosts) {
  std::mt19937 random(29);
  for (const size_t vocab : {1u, 5u, 513u, 3000u}) {
    const auto logits = RandomFloats(random, vocab, 5.0f);
    for (const int32_t num_top : {0, 1, 8}) {
      ExpectLogprobsAsOnTheHost(logits, static_cast<int32_t>(vocab / 2), num_top);
    }
  }
  ExpectLogprobsAsOnTheHost({1.0f, 5.0f, 3.0f, 3.0f}, 2, 4);
  ExpectLogprobsAsOnTheHost({kNan, 1.0f, kInfinity, -kInfinity}, 2, 4);
  ExpectLogprobsAsOnTheHost({kNan, 1.0f, 2.0f, -kInfinity}, 0, 4);
  ExpectLogprobsAsOnTheHost({kNan, kNan, kNan}, 1, 2);
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::cuda
