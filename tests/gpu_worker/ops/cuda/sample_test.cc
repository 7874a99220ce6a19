#include <algorithm>
#include <limits>

#include "gpu_worker/ops/cuda/sample_rows.h"
#include "gpu_worker/ops/sampling.h"
#include "tests/gpu_worker/ops/cuda/shim_launcher.h"
#include "tests/gpu_worker/ops/sampler_under_test.h"

// The kernels as sampling_cases.cc sees them, and against the host's sampler.
namespace tandem::gpu_worker {

std::vector<SampledToken> ChooseAll(const std::vector<float>& logits,
                                    std::span<const ops::TokenChoice> choices) {
  namespace cuda = ops::cuda;
  cuda::ShimLauncher launcher;
  const auto vocab = static_cast<int32_t>(logits.size());
  const auto count = static_cast<int32_t>(choices.size());
  std::vector<float> batch;
  for (int32_t i = 0; i < count; ++i) {
    batch.insert(batch.end(), logits.begin(), logits.end());
  }
  cuda::SampleBatch sample = cuda::MakeSampleBatch(choices, vocab);
  sample.PointToMasks(sample.masks.data());
  const int32_t max_top = std::max(sample.max_logprobs, 0);
  const size_t stride = 1 + static_cast<size_t>(max_top);
  cuda::Guarded in(batch);
  cuda::Guarded scratch(batch.size() * sizeof(float));
  cuda::Guarded tokens(choices.size() * sizeof(int32_t));
  cuda::Guarded entries(choices.size() * stride * sizeof(cuda::LogprobEntry));
  const cuda::LogitRowsParams rows{in.as<float>(), sample.rows.data(), tokens.as<int32_t>(), count,
                                   vocab};
  EXPECT_TRUE(
      cuda::Sample(launcher, nullptr, {rows, scratch.as<float>(), sample.edits.data()}).ok());
  EXPECT_TRUE(
      cuda::Logprobs(launcher, nullptr, {rows, entries.as<cuda::LogprobEntry>(), max_top}).ok());
  EXPECT_EQ(std::memcmp(in.data(), batch.data(), in.bytes()), 0) << "the logits stay";
  std::vector<SampledToken> sampled;
  for (size_t i = 0; i < choices.size(); ++i) {
    sampled.push_back({tokens.as<int32_t>()[i], std::nullopt});
    if (choices[i].num_logprobs >= 0) {
      sampled.back().logprobs = cuda::LogprobsFrom(entries.as<cuda::LogprobEntry>() + i * stride,
                                                   choices[i].num_logprobs);
    }
  }
  return sampled;
}

// A row takes the shim milliseconds.
int NumDraws() { return 150; }

namespace ops::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class CudaSampleTest : public testing::Test {
 protected:
  // Eight seeds of a request, among tokens that occurred before, against the host's sampler.
  void Check(const std::vector<float>& logits, const SamplingParams& params) {
    std::vector<SamplingParams> seeded(8, params);
    std::vector<SampleRequest> requests(seeded.size());
    std::vector<TokenChoice> choices;
    for (size_t i = 0; i < seeded.size(); ++i) {
      seeded[i].seed = random_();
      SampleRequest& request = requests[i];
      request.params = &seeded[i];
      request.prompt_tokens = prompt_;
      request.output_tokens = std::span(output_).first(i % (output_.size() + 1));
      request.allowed_tokens = allowed_;
      choices.push_back({&request, 0, -1});
    }
    const std::vector<SampledToken> sampled = ChooseAll(logits, choices);
    for (size_t i = 0; i < requests.size(); ++i) {
      std::vector<float> row = logits;
      EXPECT_EQ(sampled[i].token, SampleRow(row, requests[i]).token) << "row " << i;
    }
  }

  std::mt19937 random_{23};
  std::vector<int32_t> prompt_ = {3, 4, 5};
  std::vector<int32_t> output_ = {5, 6, 6, 7};
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

// Of a row that wants some, one that wants others and one that wants none.
TEST_F(CudaSampleTest, OddLogprobsAreTheHosts) {
  for (const std::vector<float>& logits : std::vector<std::vector<float>>{
           {kNan, 1.0f, kInfinity, -kInfinity}, {kNan, 1.0f, 2.0f, -kInfinity}, {kNan, kNan}}) {
    const TokenChoice choices[] = {{nullptr, 1, 4}, {nullptr, 0, -1}, {nullptr, 0, 1}};
    const std::vector<SampledToken> sampled = ChooseAll(logits, choices);
    EXPECT_FALSE(sampled[1].logprobs.has_value());
    for (const size_t i : {0u, 2u}) {
      const TokenLogprobs expected = LogprobsOf(logits, choices[i].token, choices[i].num_logprobs);
      EXPECT_EQ(sampled[i].logprobs->chosen.logprob, expected.chosen.logprob);
      EXPECT_EQ(sampled[i].logprobs->chosen.rank, expected.chosen.rank);
      ASSERT_EQ(sampled[i].logprobs->top.size(), expected.top.size());
      for (size_t k = 0; k < expected.top.size(); ++k) {
        EXPECT_EQ(sampled[i].logprobs->top[k].token_id, expected.top[k].token_id);
        EXPECT_EQ(sampled[i].logprobs->top[k].rank, expected.top[k].rank);
      }
    }
  }
}

}  // namespace
}  // namespace ops::cuda
}  // namespace tandem::gpu_worker
