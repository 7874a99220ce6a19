#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gpu_worker/pipeline/pipeline_runner.h"
#include "gtest/gtest.h"
#include "tests/fakes/fake_cpu_attention_worker.h"
#include "tests/gpu_worker/pipeline/golden_cases.h"
#include "tests/gpu_worker/pipeline/sequence_driver.h"

namespace tandem::gpu_worker {

// A runner of a tiny golden model in float32 with both tiers.
inline std::unique_ptr<PipelineRunner> MakeRunner(const PipelineOptions& options,
                                                  const std::string& model = "llama3-like") {
  auto files = model_files::OpenModel(GoldenFolder(model));
  EXPECT_TRUE(files.ok()) << files.status();
  auto runner = PipelineRunner::Create(options, **files);
  EXPECT_TRUE(runner.ok()) << runner.status();
  for (size_t i = 0; i < (*runner)->exchanges().size(); ++i) {
    EXPECT_TRUE((*runner)->PrepareCpuBlocks(i, (*runner)->limits().num_cpu_blocks).ok());
  }
  return *std::move(runner);
}

inline PipelineOptions TwoTierOptions() {
  PipelineOptions options;
  options.device = TestDevice();
  options.tensor_parallel_size = TestTensorParallel();
  options.compute_dtype = DType::kFloat32;
  options.cpu_kv_dtype = DType::kFloat32;
  options.max_num_seqs = 16;
  options.cpu_kv_bytes = uint64_t{64} << 20;
  return options;
}

// A golden case as a sequence to run.
inline SequenceDriver::Sequence ToSequence(const GoldenCase& golden, bool on_cpu, int sub_batch) {
  SequenceDriver::Sequence sequence;
  sequence.prompt = golden.prompt;
  sequence.num_tokens = static_cast<int32_t>(golden.tokens.size());
  sequence.on_cpu = on_cpu;
  sequence.sub_batch = sub_batch;
  return sequence;
}

// A runner with its CPU attention worker, and golden cases to run on it.
class PipelineTest : public testing::Test {
 protected:
  void Start(const PipelineOptions& options) {
    runner_ = MakeRunner(options);
    if (runner_->exchange() != nullptr) {
      AttachWorker();
    }
    driver_ = std::make_unique<SequenceDriver>(runner_.get(), 3);
  }
  void AttachWorker() {
    worker_ = std::make_unique<fakes::FakeCpuAttentionWorker>(runner_->exchange());
    runner_->SetCpuWorkerUp(true);
  }
  // Every second one on the CPU; both tiers have some in either sub-batch.
  void AddCases(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      driver_->Add(ToSequence(cases_[i], i % 2 == 1, static_cast<int>(i / 2 % 2)));
    }
  }
  // Runs `input` while the worker dies at `layer` and its link notices and says so.
  absl::StatusOr<StepOutput> RunWhileWorkerDies(int32_t layer, const StepInput& input) {
    worker_->DieAtLayer(layer);
    std::thread link([&] {
      while (!worker_->dead()) {
        std::this_thread::yield();
      }
      runner_->SetCpuWorkerUp(false);
    });
    auto output = runner_->Run(input);
    link.join();
    return output;
  }
  // The next process after a death.
  void ReplaceWorker() {
    worker_.reset();
    runner_->exchange()->ResetAfterDeath();
    AttachWorker();
  }

  std::unique_ptr<PipelineRunner> runner_;
  std::unique_ptr<fakes::FakeCpuAttentionWorker> worker_;
  std::unique_ptr<SequenceDriver> driver_;
  const std::vector<GoldenCase> cases_ = LoadGoldenCases("llama3-like");
};

}  // namespace tandem::gpu_worker
