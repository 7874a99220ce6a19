#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/model_files/model_files.h"
#include "gpu_worker/pipeline/pipeline_runner.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_cpu_attention_worker.h"
#include "tests/gpu_worker/pipeline/golden_cases.h"
#include "tests/gpu_worker/pipeline/sequence_driver.h"

namespace tandem::gpu_worker {
namespace {

// Limits of the goldens' README: float32 exactly; bfloat16 weights and activations.
struct Limits {
  double mean;
  double max;
  double margin;  // greedy tokens are equal up to the first step with a smaller one
};
constexpr Limits kFloat32 = {1e-4, 1e-3, 0.0};
constexpr Limits kBFloat16 = {0.07, 0.48, 0.39};

struct Way {
  const char* name;
  DType dtype;
  StepMode mode;
  int32_t chunk;
  int cpu_of_two;  // of every two sequences, how many live on the CPU
  int32_t block_tokens;
};

constexpr Way kWays[] = {
    {"float32_gpu", DType::kFloat32, StepMode::kGpuOnly, 2048, 0, 16},
    {"float32_gpu_chunks", DType::kFloat32, StepMode::kGpuOnly, 37, 0, 32},
    {"float32_unified", DType::kFloat32, StepMode::kUnified, 64, 1, 16},
    {"float32_all_cpu", DType::kFloat32, StepMode::kUnified, 50, 2, 128},
    {"float32_asymmetric", DType::kFloat32, StepMode::kAsymmetric, 100, 2, 64},
    {"bfloat16_gpu", DType::kBFloat16, StepMode::kGpuOnly, 100, 0, 16},
    {"bfloat16_asymmetric", DType::kBFloat16, StepMode::kAsymmetric, 64, 1, 16},
};

const char* const kModels[] = {"llama2-like", "llama3-like", "mistral-like", "qwen2-like",
                               "qwen3-like"};

class GoldenTest : public testing::TestWithParam<std::tuple<const char*, Way>> {};

void Compare(const GoldenCase& golden, const SequenceDriver::Sequence& got, const Limits& limits,
             double* sum, int* count) {
  double max = 0;
  for (size_t i = 0; i < golden.tokens.size(); ++i) {
    if (golden.margins[i] < limits.margin && got.tokens[i] != golden.tokens[i]) {
      return;  // a narrow step may go the other way, and everything after it is another text
    }
    ASSERT_EQ(got.tokens[i], golden.tokens[i]) << golden.name << " token " << i;
    const double difference = std::abs(got.logprobs[i].chosen.logprob - golden.logprobs[i]);
    max = std::max(max, difference);
    *sum += difference;
    ++*count;
    ASSERT_EQ(got.logprobs[i].top.size(), 5u);
    if (limits.margin == 0.0) {
      for (size_t k = 0; k < 5; ++k) {
        EXPECT_NEAR(got.logprobs[i].top[k].logprob, golden.top_logprobs[i][k], limits.max)
            << golden.name << " token " << i << " rank " << k;
      }
    }
  }
  EXPECT_LE(max, limits.max) << golden.name;
  if (!golden.prompt_logprobs.empty()) {
    ASSERT_EQ(got.prompt_logprobs.size(), golden.prompt_logprobs.size());
    for (size_t i = 0; i < golden.prompt_logprobs.size(); ++i) {
      EXPECT_NEAR(got.prompt_logprobs[i].chosen.logprob, golden.prompt_logprobs[i],
                  limits.margin == 0.0 ? limits.max : 2 * limits.max)
          << golden.name << " prompt token " << i + 1;
    }
  }
}

TEST_P(GoldenTest, AnswersAsTheOracle) {
  const auto& [model, way] = GetParam();
  if (way.dtype == DType::kBFloat16 && DefaultComputeDType("host") != DType::kBFloat16) {
    GTEST_SKIP() << "this machine has no bfloat16 instructions";
  }
  auto files = model_files::OpenModel(GoldenFolder(model));
  ASSERT_TRUE(files.ok()) << files.status();
  PipelineOptions options;
  options.compute_dtype = way.dtype;
  options.cpu_kv_dtype = way.dtype;
  options.block_tokens = way.block_tokens;
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 2048;
  options.cpu_kv_bytes = way.cpu_of_two > 0 ? uint64_t{64} << 20 : 0;
  auto runner = PipelineRunner::Create(options, **files);
  ASSERT_TRUE(runner.ok()) << runner.status();
  files->reset();  // weights must not be needed any more
  std::unique_ptr<fakes::FakeCpuAttentionWorker> worker;
  if (way.cpu_of_two > 0) {
    worker = std::make_unique<fakes::FakeCpuAttentionWorker>((*runner)->exchange());
    (*runner)->SetCpuWorkerUp(true);
  }
  const std::vector<GoldenCase> cases = LoadGoldenCases(model);
  SequenceDriver driver(runner->get(), 5);
  for (size_t i = 0; i < cases.size(); ++i) {
    SequenceDriver::Sequence sequence;
    sequence.prompt = cases[i].prompt;
    sequence.num_tokens = static_cast<int32_t>(cases[i].tokens.size());
    sequence.on_cpu = static_cast<int>(i % 2) < way.cpu_of_two;
    sequence.sub_batch = static_cast<int>(i / 2 % 2);
    sequence.num_prompt_logprobs = cases[i].prompt_logprobs.empty() ? -1 : 0;
    driver.Add(std::move(sequence));
  }
  const absl::Status status = driver.RunAll(way.mode, way.chunk);
  ASSERT_TRUE(status.ok()) << status;
  const Limits& limits = way.dtype == DType::kFloat32 ? kFloat32 : kBFloat16;
  double sum = 0;
  int count = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    Compare(cases[i], driver.sequences()[i], limits, &sum, &count);
  }
  ASSERT_GT(count, 40);
  EXPECT_LE(sum / count, limits.mean);
  if (worker != nullptr) {
    EXPECT_GT(worker->rows(), 0u);
    worker.reset();
  }
}

std::string Name(const testing::TestParamInfo<std::tuple<const char*, Way>>& info) {
  std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Combine(testing::ValuesIn(kModels), testing::ValuesIn(kWays)),
                         Name);

}  // namespace
}  // namespace tandem::gpu_worker
