#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "common/model_files/model_files.h"
#include "gpu_worker/pipeline/pipeline_runner.h"
#include "gtest/gtest.h"
#include "tests/common/base/sanitized.h"
#include "tests/fakes/fake_cpu_attention_worker.h"
#include "tests/gpu_worker/pipeline/golden_cases.h"
#include "tests/gpu_worker/pipeline/sequence_driver.h"

namespace tandem::gpu_worker {
namespace {

// Limits of the goldens' README: float32 exactly; bfloat16 weights and activations; KV of the CPU
// tier in reduced precision. For fp8_e4m3, which the README does not have, three times int8's: its
// steps are up to 16 times as wide where a row's values are of one size.
struct Limits {
  double mean;
  double max;
  double margin;  // greedy tokens are equal up to the first step with a smaller one
};
constexpr Limits kFloat32 = {1e-4, 1e-3, 0.0};
constexpr Limits kBFloat16 = {0.07, 0.48, 0.39};
constexpr Limits kFloat32OverBFloat16 = {0.014, 0.12, 0.09};
constexpr Limits kFloat32OverInt8 = {0.06, 0.51, 0.41};
constexpr Limits kBFloat16OverInt8 = {0.09, 0.66, 0.53};
constexpr Limits kFloat32OverFloat8 = {0.18, 1.53, 1.23};

struct Way {
  const char* name;
  DType dtype;
  DType kv;  // of the CPU pool
  Limits limits;
  StepMode mode;
  int32_t chunk;
  int cpu_of_two;  // of every two sequences, how many live on the CPU
  int32_t block_tokens;
  int32_t cpu_workers = 1;  // which share out the KV heads
};

constexpr DType kF32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;
constexpr DType kF16 = DType::kFloat16;
constexpr DType kInt8 = DType::kInt8;

constexpr Way kWays[] = {
    {"float32_gpu", kF32, kF32, kFloat32, StepMode::kGpuOnly, 2048, 0, 16},
    {"float32_gpu_chunks", kF32, kF32, kFloat32, StepMode::kGpuOnly, 37, 0, 32},
    {"float32_unified", kF32, kF32, kFloat32, StepMode::kUnified, 64, 1, 16},
    {"float32_all_cpu", kF32, kF32, kFloat32, StepMode::kUnified, 50, 2, 128},
    {"float32_asymmetric", kF32, kF32, kFloat32, StepMode::kAsymmetric, 100, 2, 64},
    {"float32_two_workers", kF32, kF32, kFloat32, StepMode::kUnified, 50, 1, 16, 2},
    {"float32_two_workers_asymmetric", kF32, kF32, kFloat32, StepMode::kAsymmetric, 64, 2, 64, 2},
    {"bfloat16_gpu", kBf16, kBf16, kBFloat16, StepMode::kGpuOnly, 100, 0, 16},
    {"bfloat16_asymmetric", kBf16, kBf16, kBFloat16, StepMode::kAsymmetric, 64, 1, 16},
    {"float16_gpu", kF16, kBf16, kBFloat16, StepMode::kGpuOnly, 100, 0, 16},
    {"float16_asymmetric", kF16, kBf16, kBFloat16, StepMode::kAsymmetric, 64, 1, 32},
    {"float32_over_bfloat16", kF32, kBf16, kFloat32OverBFloat16, StepMode::kUnified, 50, 2, 32},
    {"float32_over_int8", kF32, kInt8, kFloat32OverInt8, StepMode::kUnified, 50, 2, 16},
    {"bfloat16_over_int8", kBf16, kInt8, kBFloat16OverInt8, StepMode::kAsymmetric, 37, 2, 64},
    {"float32_over_fp8", kF32, DType::kFloat8E4M3, kFloat32OverFloat8, StepMode::kUnified, 33, 2,
     128},
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
  const std::string device = TestDevice();
  if (device == "host" && way.dtype == DType::kBFloat16 &&
      DefaultComputeDType("host") != DType::kBFloat16) {
    GTEST_SKIP() << "this machine has no bfloat16 instructions";
  }
  if (device == "host" && way.dtype == DType::kFloat16) {
    GTEST_SKIP() << "the host does not compute in float16";
  }
  auto files = model_files::OpenModel(GoldenFolder(model));
  ASSERT_TRUE(files.ok()) << files.status();
  PipelineOptions options;
  options.device = device;
  options.compute_dtype = way.dtype;
  options.cpu_kv_dtype = way.kv;
  options.block_tokens = way.block_tokens;
  options.max_num_seqs = 16;
  options.max_num_batched_tokens = 2048;
  options.cpu_kv_bytes = way.cpu_of_two > 0 ? uint64_t{64} << 20 : 0;
  options.num_cpu_attention_workers = way.cpu_workers;
  options.tensor_parallel_size = TestTensorParallel();
  auto runner = PipelineRunner::Create(options, **files);
  ASSERT_TRUE(runner.ok()) << runner.status();
  files->reset();  // weights must not be needed any more
  std::vector<std::unique_ptr<fakes::FakeCpuAttentionWorker>> workers;
  for (exchange::DeviceSide* exchange : (*runner)->exchanges()) {
    workers.push_back(std::make_unique<fakes::FakeCpuAttentionWorker>(exchange));
    (*runner)->SetCpuWorkerUp(workers.size() - 1, true);
    const absl::Status prepared =
        (*runner)->PrepareCpuBlocks(workers.size() - 1, (*runner)->limits().num_cpu_blocks);
    ASSERT_TRUE(prepared.ok()) << prepared;
  }
  ASSERT_EQ(workers.size(), way.cpu_of_two > 0 ? static_cast<size_t>(way.cpu_workers) : 0u);
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
  const Limits& limits = way.limits;
  double sum = 0;
  int count = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    Compare(cases[i], driver.sequences()[i], limits, &sum, &count);
  }
  // A run that took another way at a narrow step is compared no further, which fp8_e4m3 does early.
  ASSERT_GT(count, limits.margin > 1.0 ? 20 : 40);
  EXPECT_LE(sum / count, limits.mean);
  for (const auto& worker : workers) {
    EXPECT_GT(worker->rows(), 0u);
  }
  workers.clear();
}

std::string Name(const testing::TestParamInfo<std::tuple<const char*, Way>>& info) {
  std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Each model in each way; under a sanitizer a third of the pairs, with every model and every way.
std::vector<std::tuple<const char*, Way>> Pairs() {
  std::vector<std::tuple<const char*, Way>> pairs;
  for (size_t model = 0; model < std::size(kModels); ++model) {
    for (size_t way = 0; way < std::size(kWays); ++way) {
      if (!kSanitized || (model + way) % 3 == 0) {
        pairs.emplace_back(kModels[model], kWays[way]);
      }
    }
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, testing::ValuesIn(Pairs()), Name);

}  // namespace
}  // namespace tandem::gpu_worker
