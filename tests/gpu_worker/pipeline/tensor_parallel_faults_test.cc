#include <gmock/gmock.h>

#include <cstdlib>

#include "gpu_worker/device/cuda/cuda_group.h"
#include "tests/gpu_worker/pipeline/pipeline_fixture.h"

// Two devices of the fake driver, of which one does not do its part.
namespace tandem::gpu_worker {
namespace {

using testing::HasSubstr;

// Read by the fake NCCL when a group is made.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Setting() { unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

class TensorParallelFaultsTest : public PipelineTest {
 protected:
  // Runs until the step with the fault, which is some steps after the start.
  absl::Status RunToFault() { return driver_->RunAll(StepMode::kAsymmetric, 64); }
  // Like any error of a device: the step is gone, and nothing works until the process is replaced.
  void ExpectLost(const absl::Status& fault, const char* what) {
    EXPECT_EQ(fault.code(), absl::StatusCode::kInternal) << fault;
    EXPECT_THAT(std::string(fault.message()), HasSubstr(what));
    EXPECT_THAT(std::string(runner_->DeviceHealth().message()), HasSubstr(what));
    const absl::Status next = driver_->Step(StepMode::kGpuOnly, 64);
    EXPECT_EQ(next.code(), absl::StatusCode::kInternal) << next;
    EXPECT_THAT(std::string(next.message()), HasSubstr(what));
  }
};

TEST_F(TensorParallelFaultsTest, ACallThatFailsOnOneDeviceFreesTheOther) {
  for (const char* call : {"0:41", "1:6"}) {
    const Setting fault("FAKE_NCCL_FAILS", call);
    Start(TwoTierOptions());
    AddCases(4);
    ExpectLost(RunToFault(), "NCCL: a fake error");
    worker_.reset();
  }
}

TEST_F(TensorParallelFaultsTest, ADeviceThatTheLibraryMissesIsAnError) {
  const Setting fault("FAKE_NCCL_LOST", "1:23");
  const Setting patience("FAKE_NCCL_PATIENCE_MS", "50");
  Start(TwoTierOptions());
  AddCases(4);
  ExpectLost(RunToFault(), "a fake rank did not come");
}

TEST_F(TensorParallelFaultsTest, ADeviceThatNobodyMissesIsNoticedByTheDeadline) {
  const Setting fault("FAKE_NCCL_LOST", "0:23");
  const Setting patience("FAKE_NCCL_PATIENCE_MS", "600000");
  PipelineOptions options = TwoTierOptions();
  options.collective_timeout_us = 3'000'000;
  Start(options);
  AddCases(4);
  ExpectLost(RunToFault(), "the GPUs did not end a step within 3000000 us");
}

TEST_F(TensorParallelFaultsTest, ModelsThatTwoDevicesCannotShareAreRefusedByField) {
  const auto files = model_files::OpenModel(GoldenFolder("llama2-like")).value();
  const absl::Status refused = PipelineRunner::Create(TwoTierOptions(), *files).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("num_attention_heads of 3"));
}

TEST(TensorParallelDevicesTest, MoreThanTheDriverHasAreRefused) {
  const absl::Status refused = device::CudaGroup::IsAvailable(3);
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_EQ(refused.message(), "the CUDA driver sees 2 devices");
  EXPECT_TRUE(device::CudaGroup::IsAvailable(2).ok());
}

TEST_F(TensorParallelFaultsTest, TheDevicesAreNamedAndHaveTheSameBlocks) {
  Start(TwoTierOptions());
  EXPECT_EQ(runner_->device_name(), "2 x cuda: fake GPU of the tests");
  EXPECT_TRUE(runner_->DeviceHealth().ok());
  const MeasuredRates rates = runner_->MeasureRates();  // of one device; leaves the other in peace
  EXPECT_GT(rates.flops_per_us, 0.0);
  AddCases(2);
  EXPECT_TRUE(driver_->RunAll(StepMode::kUnified, 64).ok());
  EXPECT_EQ(driver_->sequences()[1].tokens, cases_[1].tokens);
}

}  // namespace
}  // namespace tandem::gpu_worker
