#include "gpu_worker/pipeline/pipeline_runner.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/fake_cpu_attention_worker.h"
#include "tests/gpu_worker/pipeline/pipeline_fixture.h"

namespace tandem::gpu_worker {
namespace {

using fakes::FakeCpuAttentionWorker;

class PipelineRunnerTest : public testing::Test {
 protected:
  void Start(const PipelineOptions& options) {
    runner_ = MakeRunner(options);
    if (runner_->exchange() != nullptr) {
      AttachWorker();
    }
    driver_ = std::make_unique<SequenceDriver>(runner_.get(), 3);
  }
  void AttachWorker() {
    worker_ = std::make_unique<FakeCpuAttentionWorker>(runner_->exchange());
    runner_->SetCpuWorkerUp(true);
  }
  void AddCases(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      driver_->Add(ToSequence(cases_[i], i % 2 == 1, static_cast<int>(i / 2 % 2)));
    }
  }
  void ExpectGoldenTokens() {
    for (size_t i = 0; i < driver_->sequences().size(); ++i) {
      EXPECT_EQ(driver_->sequences()[i].tokens, cases_[i].tokens) << cases_[i].name;
    }
  }

  std::unique_ptr<PipelineRunner> runner_;
  std::unique_ptr<FakeCpuAttentionWorker> worker_;
  std::unique_ptr<SequenceDriver> driver_;
  const std::vector<GoldenCase> cases_ = LoadGoldenCases("llama3-like");
};

TEST_F(PipelineRunnerTest, TransferStreamOfItsOwnGivesTheSameTokens) {
  for (const StepMode mode : {StepMode::kUnified, StepMode::kAsymmetric}) {
    PipelineOptions options = TwoTierOptions();
    options.separate_transfer_stream = true;
    Start(options);
    AddCases(6);
    ASSERT_TRUE(driver_->Step(mode, 40).ok());
    driver_->Move(0);
    driver_->Move(3);
    const absl::Status status = driver_->RunAll(mode, 40);
    ASSERT_TRUE(status.ok()) << status;
    ExpectGoldenTokens();
    worker_.reset();
  }
}

TEST_F(PipelineRunnerTest, SequencesMoveBetweenThePoolsInBothDirections) {
  Start(TwoTierOptions());
  AddCases(7);
  // In the middle of prompts, of decoding, and one to and fro.
  for (int step = 0; step < 30; ++step) {
    if (step % 5 == 2) {
      driver_->Move(static_cast<size_t>(step) % 7);
      driver_->Move(5);
    }
    const absl::Status status = driver_->Step(StepMode::kUnified, 48);
    ASSERT_TRUE(status.ok()) << status;
  }
  ASSERT_TRUE(driver_->RunAll(StepMode::kUnified, 48).ok());
  ExpectGoldenTokens();
}

TEST_F(PipelineRunnerTest, MovesAloneAreAStep) {
  Start(TwoTierOptions());
  AddCases(3);
  ASSERT_TRUE(driver_->Step(StepMode::kUnified, 64).ok());
  StepInput input;
  SequenceDriver::Sequence& sequence = driver_->sequences()[2];
  input.epoch = driver_->NextEpoch();
  input.copies.push_back({true, sequence.gpu_blocks, sequence.cpu_blocks, sequence.computed});
  const auto output = runner_->Run(input);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_TRUE(output->sequences.empty());
  sequence.on_cpu = true;
  ASSERT_TRUE(driver_->RunAll(StepMode::kUnified, 64).ok());
  ExpectGoldenTokens();
}

TEST_F(PipelineRunnerTest, AStepWhoseWorkerDiesIsRepeatedWithTheSameResult) {
  for (const bool separate : {false, true}) {
    PipelineOptions options = TwoTierOptions();
    options.separate_transfer_stream = separate;
    Start(options);
    AddCases(6);
    for (int step = 0; step < 12; ++step) {
      ASSERT_TRUE(driver_->Step(StepMode::kAsymmetric, 64).ok());
    }
    worker_->DieAtLayer(1);
    // The link's part: it notices the death and says so.
    std::thread link([&] {
      while (!worker_->dead()) {
        std::this_thread::yield();
      }
      runner_->SetCpuWorkerUp(false);
    });
    StepInput input;
    ASSERT_TRUE(driver_->Plan(StepMode::kAsymmetric, 64, &input));
    const auto lost = runner_->Run(input);
    link.join();
    ASSERT_FALSE(lost.ok());
    EXPECT_EQ(lost.status().code(), absl::StatusCode::kUnavailable) << lost.status();

    input.epoch = driver_->NextEpoch();
    EXPECT_EQ(runner_->Run(input).status().code(), absl::StatusCode::kUnavailable);
    // Without its CPU rows the step runs meanwhile.
    StepInput device_only;
    ASSERT_TRUE(driver_->Plan(StepMode::kGpuOnly, 64, &device_only));
    const auto partial = runner_->Run(device_only);
    ASSERT_TRUE(partial.ok()) << partial.status();
    driver_->Apply(device_only, *partial);

    worker_.reset();
    runner_->exchange()->ResetAfterDeath();
    AttachWorker();
    ASSERT_TRUE(driver_->RunAll(StepMode::kAsymmetric, 64).ok());
    ExpectGoldenTokens();
    worker_.reset();
  }
}

TEST_F(PipelineRunnerTest, AWorkerThatHangsIsAbortedAfterTheTimeout) {
  PipelineOptions options = TwoTierOptions();
  options.cpu_wait_timeout_us = 50'000;
  Start(options);
  AddCases(4);
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(driver_->Step(StepMode::kUnified, 64).ok());
  }
  worker_->DieAtLayer(0);  // and nobody says so
  StepInput input;
  ASSERT_TRUE(driver_->Plan(StepMode::kUnified, 64, &input));
  EXPECT_EQ(runner_->Run(input).status().code(), absl::StatusCode::kUnavailable);
  // It never acknowledged, so nothing is written to CPU blocks until it is known to be dead.
  input.epoch = driver_->NextEpoch();
  EXPECT_EQ(runner_->Run(input).status().code(), absl::StatusCode::kUnavailable);
  runner_->SetCpuWorkerUp(false);
  worker_.reset();
  runner_->exchange()->ResetAfterDeath();
  AttachWorker();
  ASSERT_TRUE(driver_->RunAll(StepMode::kUnified, 64).ok());
  ExpectGoldenTokens();
}

TEST_F(PipelineRunnerTest, StepsThatCannotWorkAreInternalErrors) {
  Start(TwoTierOptions());
  AddCases(2);
  StepInput input;
  const auto code = [&] {
    input.epoch = driver_->NextEpoch();
    return runner_->Run(input).status().code();
  };
  ASSERT_TRUE(driver_->Plan(StepMode::kUnified, 64, &input));
  const StepInput good = input;
  const std::vector<int32_t> bad_block = {runner_->limits().num_gpu_blocks, 0, 0, 0, 0, 0};
  input.sub_batch[0][0].block_table = bad_block;
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
  input = good;
  const std::vector<int32_t> bad_token = {runner_->limits().vocab_size};
  input.sub_batch[0][0].tokens = bad_token;
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
  input = good;
  input.sub_batch[0][0].block_table = {};
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
  input = good;
  input.sub_batch[0][0].start_position = 1 << 30;
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
  input = good;
  input.mode = StepMode::kGpuOnly;
  input.sub_batch[0][1].kind = WorkKind::kDecodeCpu;
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
  input = good;
  std::swap(input.sub_batch[0], input.sub_batch[1]);
  EXPECT_EQ(code(), absl::StatusCode::kInternal);
  // None of it left a trace.
  ASSERT_TRUE(driver_->RunAll(StepMode::kUnified, 64).ok());
  ExpectGoldenTokens();
}

TEST_F(PipelineRunnerTest, RatesArePlausibleAndTimingsAddUp) {
  Start(TwoTierOptions());
  const MeasuredRates rates = runner_->MeasureRates();
  for (const double value : {rates.weight_bytes, rates.memory_bytes_per_us, rates.flops_per_us,
                             rates.attention_bytes_per_us, rates.cpu_attention_bytes_per_us,
                             rates.copy_bytes_per_us, rates.launch_us, rates.flops_per_token}) {
    EXPECT_GT(value, 0.0);
  }
  EXPECT_EQ(rates.kv_bytes_per_token_layer, 2 * 2 * 128 * 4);
  EXPECT_EQ(rates.num_layers, 2);
  AddCases(4);
  StepInput input;
  ASSERT_TRUE(driver_->Plan(StepMode::kUnified, 64, &input));
  const auto output = runner_->Run(input);
  ASSERT_TRUE(output.ok());
  const StepTimings& timings = output->timings;
  const double parts = timings.linear_us + timings.prefill_us + timings.gpu_decode_us +
                       timings.cpu_decode_us + timings.copies_us;
  EXPECT_GT(timings.linear_us, 0.0);
  EXPECT_GT(timings.prefill_us, 0.0);
  EXPECT_LE(parts, timings.total_us);
}

TEST(PipelineCreateTest, RefusesWhatItCannotDo) {
  auto files = model_files::OpenModel(GoldenFolder("llama3-like"));
  ASSERT_TRUE(files.ok());
  PipelineOptions options = TwoTierOptions();
  options.device = "cuda";
  EXPECT_EQ(PipelineRunner::Create(options, **files).status().code(),
            absl::StatusCode::kUnimplemented);
  options = TwoTierOptions();
  options.compute_dtype = DType::kFloat16;
  EXPECT_EQ(PipelineRunner::Create(options, **files).status().code(),
            absl::StatusCode::kUnimplemented);
  options = TwoTierOptions();
  options.cpu_kv_bytes = uint64_t{900} << 40;
  EXPECT_EQ(PipelineRunner::Create(options, **files).status().code(),
            absl::StatusCode::kResourceExhausted);
  options = TwoTierOptions();
  options.cpu_kv_bytes = 0;
  auto without = PipelineRunner::Create(options, **files);
  ASSERT_TRUE(without.ok());
  EXPECT_EQ((*without)->exchange(), nullptr);
  EXPECT_EQ((*without)->limits().num_cpu_blocks, 0);
}

}  // namespace
}  // namespace tandem::gpu_worker
