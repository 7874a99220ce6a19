#include <unistd.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gpu_worker/cost_model/profile_cost_model.h"
#include "gpu_worker/pipeline/pipeline_runner.h"
#include "gtest/gtest.h"
#include "tests/gpu_worker/pipeline/pipeline_fixture.h"

// The pipeline on an emulated GPU, with a CPU worker that attends to what it finds.
namespace tandem::gpu_worker {
namespace {

// So slow that no operation ends before the next one is queued.
constexpr char kSlowProfile[] = "extends: t4\nname: slow\ngpu:\n  memory_gb_per_s: 0.02\n";

class PacedPipelineTest : public PipelineTest {
 protected:
  PacedPipelineTest()
      : profile_path_(testing::TempDir() + "paced_" + std::to_string(getpid()) + ".yaml") {
    std::ofstream(profile_path_) << kSlowProfile;
  }
  ~PacedPipelineTest() override {
    worker_.reset();
    unlink(profile_path_.c_str());
  }

  void StartPaced(const std::string& profile) {
    PipelineOptions options = TwoTierOptions();
    options.device = "paced:" + profile;
    options.num_gpu_blocks = 500;
    Start(options);
  }
  std::vector<std::vector<int32_t>> Tokens() const {
    std::vector<std::vector<int32_t>> tokens;
    for (const SequenceDriver::Sequence& sequence : driver_->sequences()) {
      tokens.push_back(sequence.tokens);
    }
    return tokens;
  }
  std::unique_ptr<CostModel> SlowCostModel(const ModelShape& shape) const {
    const auto profile = LoadDeviceProfile(profile_path_);
    EXPECT_TRUE(profile.ok()) << profile.status();
    auto model = MakeProfileCostModel(
        *profile, shape, {.compute_dtype = DType::kFloat32, .cpu_kv_dtype = DType::kFloat32});
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }

  const std::string profile_path_;
};

TEST_F(PacedPipelineTest, EveryModeGivesTheSameTokens) {
  std::vector<std::vector<int32_t>> first;
  for (const StepMode mode : {StepMode::kUnified, StepMode::kAsymmetric}) {
    StartPaced("t4");
    AddCases(6);
    driver_->Move(0);
    driver_->Move(3);
    const absl::Status status = driver_->RunAll(mode, 40);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_GT(worker_->rows(), 0u);
    if (first.empty()) {
      first = Tokens();
    }
    EXPECT_EQ(Tokens(), first);
    worker_.reset();
  }
}

TEST_F(PacedPipelineTest, WhatTheCpuWorkerReadsIsThere) {
  StartPaced("t4");
  AddCases(2);
  ASSERT_TRUE(driver_->Step(StepMode::kUnified, 4096).ok());
  const SequenceDriver::Sequence& sequence = driver_->sequences()[1];
  ASSERT_TRUE(sequence.on_cpu);
  const kv::PoolGeometry pool = exchange::PoolGeometryOf(runner_->exchange()->header().geometry);
  const auto width = static_cast<size_t>(pool.num_kv_heads * pool.head_dim);
  std::vector<float> k(width);
  std::vector<float> v(width);
  ASSERT_GT(sequence.computed, 0);
  for (int32_t layer = 0; layer < pool.num_layers; ++layer) {
    for (int32_t token = 0; token < sequence.computed; ++token) {
      const int32_t block = sequence.cpu_blocks[static_cast<size_t>(token / pool.block_tokens)];
      kv::LoadToken(pool, runner_->exchange()->pool() + pool.LayerOffset(block, layer),
                    token % pool.block_tokens, k.data(), v.data());
      for (size_t i = 0; i < width; ++i) {
        ASSERT_GE(std::abs(k[i]), 0.5f);
        ASSERT_LT(std::abs(v[i]), 1.0f);
      }
    }
  }
}

TEST_F(PacedPipelineTest, AStepTakesWhatTheProfilePredicts) {
  StartPaced(profile_path_);
  for (size_t i = 0; i < 3; ++i) {
    driver_->Add(ToSequence(cases_[i], false, 0));
  }
  StepInput prefill;
  ASSERT_TRUE(driver_->Plan(StepMode::kGpuOnly, 64, &prefill));
  const auto model = model_files::OpenModel(GoldenFolder("llama3-like"));
  ASSERT_TRUE(model.ok());
  const std::unique_ptr<CostModel> cost = SlowCostModel((*model)->shape());
  const auto ran = runner_->Run(prefill);
  ASSERT_TRUE(ran.ok()) << ran.status();
  double prefill_us = 0;
  for (const SequenceWork& work : prefill.sub_batch[0]) {
    prefill_us += cost->num_layers() * cost->PrefillUs(static_cast<int64_t>(work.tokens.size()), 0);
  }
  EXPECT_NEAR(ran->timings.prefill_us / prefill_us, 1.0, 0.02);
  driver_->Apply(prefill, *ran);
  while (driver_->sequences()[0].tokens.empty() || driver_->sequences()[1].tokens.empty() ||
         driver_->sequences()[2].tokens.empty()) {
    ASSERT_TRUE(driver_->Step(StepMode::kGpuOnly, 64).ok());
  }
  StepInput decode;
  ASSERT_TRUE(driver_->Plan(StepMode::kGpuOnly, 64, &decode));
  int64_t tokens = 0;
  for (const SequenceWork& work : decode.sub_batch[0]) {
    ASSERT_EQ(work.kind, WorkKind::kDecodeGpu);
    tokens += work.start_position + 1;
  }
  const auto output = runner_->Run(decode);
  ASSERT_TRUE(output.ok()) << output.status();
  const double linear_us = cost->num_layers() * cost->LinearUs(3);
  const double decode_us = cost->num_layers() * cost->GpuDecodeUs(3, tokens);
  EXPECT_NEAR(output->timings.linear_us / linear_us, 1.0, 0.02);
  EXPECT_NEAR(output->timings.gpu_decode_us / decode_us, 1.0, 0.02);
  EXPECT_GE(output->timings.total_us, linear_us + decode_us);
}

TEST_F(PacedPipelineTest, AStepWhoseWorkerDiesIsRepeated) {
  StartPaced("t4");
  AddCases(6);
  for (int step = 0; step < 6; ++step) {
    ASSERT_TRUE(driver_->Step(StepMode::kAsymmetric, 64).ok());
  }
  StepInput input;
  ASSERT_TRUE(driver_->Plan(StepMode::kAsymmetric, 64, &input));
  const auto lost = RunWhileWorkerDies(1, input);
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kUnavailable) << lost.status();
  ReplaceWorker();
  const absl::Status status = driver_->RunAll(StepMode::kAsymmetric, 64);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace tandem::gpu_worker
