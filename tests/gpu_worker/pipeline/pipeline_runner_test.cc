#include "gpu_worker/pipeline/pipeline_runner.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/cuda/counts.h"
#include "tests/gpu_worker/pipeline/pipeline_fixture.h"

namespace tandem::gpu_worker {
namespace {

class PipelineRunnerTest : public PipelineTest {
 protected:
  void ExpectGoldenTokens() {
    for (size_t i = 0; i < driver_->sequences().size(); ++i) {
      EXPECT_EQ(driver_->sequences()[i].tokens, cases_[i].tokens) << cases_[i].name;
    }
  }
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

// Prompts and moves in between, so that graphs are used again after other steps.
class DecodesTest : public PipelineRunnerTest {
 protected:
  void RunEveryMode(bool eager) {
    for (const StepMode mode : {StepMode::kGpuOnly, StepMode::kUnified, StepMode::kAsymmetric}) {
      PipelineOptions options = TwoTierOptions();
      options.enforce_eager = eager;
      options.cpu_kv_bytes = mode == StepMode::kGpuOnly ? 0 : options.cpu_kv_bytes;
      Start(options);
      AddCases(mode == StepMode::kGpuOnly ? 1 : 5);
      for (int step = 0; step < 20; ++step) {
        if (step % 9 == 8 && mode != StepMode::kGpuOnly) {
          driver_->Move(2);
        }
        ASSERT_TRUE(driver_->Step(mode, 90).ok());
      }
      const absl::Status status = driver_->RunAll(mode, 64);
      ASSERT_TRUE(status.ok()) << status;
      ExpectGoldenTokens();
      if (eager || TestDevice() != "cuda") {
        EXPECT_EQ(driver_->graph_steps(), 0);
      } else {
        EXPECT_GT(driver_->captures(), 0);
        EXPECT_GT(driver_->graph_steps(), 2 * driver_->captures());
      }
      worker_.reset();
    }
  }
};

TEST_F(DecodesTest, RunAsGraphsWhereTheDeviceHasThem) { RunEveryMode(false); }
TEST_F(DecodesTest, RunEagerlyWhereToldTo) { RunEveryMode(true); }

// Each move rounds to int8 and back; the golden tokens stay while the margin is beyond its reach.
TEST_F(PipelineRunnerTest, MovesThroughAnInt8PoolKeepTheTokens) {
  constexpr double kReach = 0.41;  // tests/data/goldens/README.md, float32 over int8
  for (const int32_t block_tokens : {16, 128}) {
    PipelineOptions options = TwoTierOptions();
    options.cpu_kv_dtype = DType::kInt8;
    options.block_tokens = block_tokens;
    Start(options);
    AddCases(7);
    for (int step = 0; step < 40; ++step) {
      if (step % 3 == 2) {
        driver_->Move(static_cast<size_t>(step) % 7);
        driver_->Move(5);
      }
      const absl::Status status = driver_->Step(StepMode::kUnified, 45);
      ASSERT_TRUE(status.ok()) << status;
    }
    ASSERT_TRUE(driver_->RunAll(StepMode::kUnified, 45).ok());
    size_t compared = 0;
    for (size_t i = 0; i < driver_->sequences().size(); ++i) {
      const std::vector<int32_t>& tokens = driver_->sequences()[i].tokens;
      size_t same = 0;
      while (same < tokens.size() && tokens[same] == cases_[i].tokens[same]) {
        ++same;
      }
      EXPECT_TRUE(same == tokens.size() || cases_[i].margins[same] < kReach)
          << cases_[i].name << " token " << same;
      compared += same;
    }
    EXPECT_GT(compared, 100u);
    worker_.reset();
  }
}

TEST_F(PipelineRunnerTest, PromptsOfTheCpuTierDoNotDependOnTheirChunks) {
  PipelineOptions options = TwoTierOptions();
  for (const DType kv : {DType::kBFloat16, DType::kInt8, DType::kFloat8E4M3}) {
    options.cpu_kv_dtype = kv;
    std::vector<std::vector<double>> logprobs;
    for (const int32_t chunk : {2048, 37}) {
      Start(options);
      SequenceDriver::Sequence sequence = ToSequence(cases_.back(), true, 0);
      sequence.num_prompt_logprobs = 0;
      driver_->Add(std::move(sequence));
      ASSERT_TRUE(driver_->RunAll(StepMode::kUnified, chunk).ok());
      std::vector<double>& found = logprobs.emplace_back();
      for (const TokenLogprobs& token : driver_->sequences()[0].prompt_logprobs) {
        found.push_back(token.chosen.logprob);
      }
      worker_.reset();
    }
    ASSERT_GT(logprobs[0].size(), 500u);
    for (size_t i = 0; i < logprobs[0].size(); ++i) {
      ASSERT_NEAR(logprobs[0][i], logprobs[1][i], 1e-4) << DTypeName(kv) << " token " << i;
    }
  }
}

TEST_F(PipelineRunnerTest, MovesReachEveryWorkersHeads) {
  PipelineOptions options = TwoTierOptions();
  options.num_cpu_attention_workers = 2;
  Start(options);
  fakes::FakeCpuAttentionWorker second(runner_->exchanges()[1]);
  runner_->SetCpuWorkerUp(1, true);
  AddCases(5);
  for (int step = 0; step < 20; ++step) {
    if (step % 4 == 3) {
      driver_->Move(static_cast<size_t>(step) % 5);
      driver_->Move(1);
    }
    const absl::Status status = driver_->Step(StepMode::kUnified, 90);
    ASSERT_TRUE(status.ok()) << status;
  }
  ASSERT_TRUE(driver_->RunAll(StepMode::kUnified, 90).ok());
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
  input.copies.push_back(input.copies[0]);
  EXPECT_EQ(runner_->Run(input).status().code(), absl::StatusCode::kInternal);  // once at most
  input.copies.pop_back();
  const std::optional<FakeCudaCounts> before = ReadFakeCudaCounts();
  const auto output = runner_->Run(input);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_TRUE(output->sequences.empty());
  if (const std::optional<FakeCudaCounts> after = ReadFakeCudaCounts(); after && before) {
    // All layers at once, and each run of neighbouring blocks, which are one device's alone; tables
    // go the other way.
    const auto devices = static_cast<uint64_t>(TestTensorParallel());
    const uint64_t most_copies = devices == 1 ? sequence.cpu_blocks.size() : 0;
    EXPECT_EQ(after->kernels - before->kernels, devices);
    EXPECT_GE(after->copies_to_host - before->copies_to_host, std::min<uint64_t>(most_copies, 1));
    EXPECT_LE(after->copies_to_host - before->copies_to_host, most_copies);
  }
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
    StepInput input;
    ASSERT_TRUE(driver_->Plan(StepMode::kAsymmetric, 64, &input));
    const auto lost = RunWhileWorkerDies(1, input);
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

    ReplaceWorker();
    ASSERT_TRUE(driver_->RunAll(StepMode::kAsymmetric, 64).ok());
    ExpectGoldenTokens();
    worker_.reset();
  }
}

TEST_F(PipelineRunnerTest, AWorkerThatHangsIsAbortedAfterTheTimeout) {
  PipelineOptions options = TwoTierOptions();
  options.cpu_wait_timeout_us =
      2'000'000;  // far above a layer's attention, sanitizers and a full machine included
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
  ReplaceWorker();
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
  const absl::Status no_driver = PipelineRunner::Create(options, **files).status();
  EXPECT_TRUE(no_driver.ok() || absl::IsUnavailable(no_driver)) << no_driver;
  options.device = "tpu";
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
