#include "gpu_worker/cost_model/predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

namespace tandem::gpu_worker {
namespace {

// Every term is a number of the test's choice, whatever the load.
class FixedCostModel : public CostModel {
 public:
  int32_t num_layers() const override { return layers; }
  double LinearUs(int64_t rows) const override { return rows > 0 ? linear : 0; }
  double PrefillUs(int64_t, int64_t) const override { return prefill; }
  double GpuDecodeUs(int64_t sequences, int64_t) const override {
    return sequences > 0 ? gpu_decode : 0;
  }
  double CpuDecodeUs(int64_t sequences, int64_t) const override {
    return static_cast<double>(sequences) * cpu_decode;
  }
  double TransferUs(int64_t rows) const override { return rows > 0 ? transfer : 0; }
  double CopyUs(int64_t tokens) const override { return static_cast<double>(tokens) * copy; }
  double LaunchUs() const override { return 0; }
  double overlap() const override { return shared; }

  int32_t layers = 40;
  double linear = 100, prefill = 50, gpu_decode = 30, cpu_decode = 10, transfer = 1, copy = 2;
  double shared = 1;
};

SubBatchLoad Load(int64_t gpu_decodes, int64_t cpu_decodes, bool prefill) {
  SubBatchLoad load;
  load.gpu_decodes = gpu_decodes;
  load.cpu_decodes = cpu_decodes;
  load.rows = gpu_decodes + cpu_decodes + (prefill ? 8 : 0);
  if (prefill) {
    load.prefills.push_back({8, 0});
  }
  return load;
}

class PredictorTest : public testing::Test {
 protected:
  StepPrediction Predict(StepMode mode, const SubBatchLoad& a, const SubBatchLoad& b = {}) {
    StepLoad load;
    load.mode = mode;
    load.sub_batch[0] = a;
    load.sub_batch[1] = b;
    return Predictor(model_).Predict(load, corrections_);
  }

  std::shared_ptr<FixedCostModel> model_ = std::make_shared<FixedCostModel>();
  Corrections corrections_;
};

TEST_F(PredictorTest, GpuOnlyIsTheSumOfItsTerms) {
  const StepPrediction step = Predict(StepMode::kGpuOnly, Load(4, 0, true));
  EXPECT_NEAR(step.total_us, 40 * (100 + 50 + 30), 1e-6);
  EXPECT_EQ(step.cpu_wait_us, 0);
}

TEST_F(PredictorTest, UnifiedHidesTheShorterSide) {
  // transfer + cpu_decode = 61 against 30 on the device: 31 of it shows.
  EXPECT_NEAR(Predict(StepMode::kUnified, Load(4, 6, false)).total_us, 40 * (100 + 61), 1.0);
  // and is hidden by 80.
  const StepPrediction hidden = Predict(StepMode::kUnified, Load(4, 6, true));
  EXPECT_NEAR(hidden.total_us, 40 * (100 + 80), 1.0);
  EXPECT_NEAR(hidden.cpu_wait_us, 0, 1.0);
}

TEST_F(PredictorTest, AsymmetricNearsTheLongestOfItsParts) {
  // Device: 100 + 30 + 100 a layer; CPU: 12 * 10; chains: below.
  const double device_bound =
      Predict(StepMode::kAsymmetric, Load(4, 0, false), Load(0, 12, false)).total_us;
  EXPECT_NEAR(device_bound / (40 * 230), 1.0, 0.05);
  // CPU: 40 * 10 = 400 a layer, but each layer of B also needs its own dense stage: chain 501.
  const double chain_bound =
      Predict(StepMode::kAsymmetric, Load(4, 0, false), Load(0, 40, false)).total_us;
  EXPECT_NEAR(chain_bound / (40 * 501), 1.0, 0.05);
  // Shared between A and B the CPU itself is the limit: 80 * 10 a layer.
  const double cpu_bound =
      Predict(StepMode::kAsymmetric, Load(4, 40, false), Load(0, 40, false)).total_us;
  EXPECT_NEAR(cpu_bound / (40 * 800), 1.0, 0.05);
}

TEST_F(PredictorTest, ExtrapolatingLayersAgreesWithWalkingThemAll) {
  const SubBatchLoad a = Load(4, 7, true);
  const SubBatchLoad b = Load(0, 9, false);
  const double whole = Predict(StepMode::kAsymmetric, a, b).total_us;
  model_->layers = 4;
  const double four = Predict(StepMode::kAsymmetric, a, b).total_us;
  model_->layers = 3;
  const double three = Predict(StepMode::kAsymmetric, a, b).total_us;
  EXPECT_NEAR(whole, four + 36 * (four - three), 1e-6);
}

TEST_F(PredictorTest, SharedCoresHideNothing) {
  model_->shared = 0;
  EXPECT_NEAR(Predict(StepMode::kUnified, Load(4, 6, true)).total_us, 40 * (100 + 80 + 1 + 60),
              1e-6);
}

TEST_F(PredictorTest, CorrectionsScaleTheirTerms) {
  corrections_.linear = 2;
  corrections_.gpu_decode = 0.5;
  EXPECT_NEAR(Predict(StepMode::kGpuOnly, Load(4, 0, false)).total_us, 40 * (200 + 15), 1e-6);
}

TEST_F(PredictorTest, CopiesAndStagingArePriced) {
  StepLoad load;
  load.sub_batch[0] = Load(4, 0, false);
  load.copied_gpu_tokens = 10;  // 20 a layer, beside the step's 130
  EXPECT_NEAR(Predictor(model_).Predict(load, corrections_).total_us, 40 * 130, 1e-6);
  load.copied_gpu_tokens = 100;
  EXPECT_NEAR(Predictor(model_).Predict(load, corrections_).total_us, 40 * 200, 1e-6);
  model_->shared = 0;  // one after the other
  EXPECT_NEAR(Predictor(model_).Predict(load, corrections_).total_us, 40 * (130 + 200), 1e-6);
  model_->shared = 1;
  load.copied_gpu_tokens = 0;
  load.sub_batch[0].staged_in_tokens = 5;
  EXPECT_NEAR(Predictor(model_).Predict(load, corrections_).total_us, 40 * (130 + 10), 1e-6);
}

TEST_F(PredictorTest, WhatMovesOutHidesBehindDenseStages) {
  StepLoad load;
  load.sub_batch[0] = Load(4, 0, false);
  load.sub_batch[0].staged_out_tokens = 45;  // 90 a layer, behind 100 of dense stages
  const double hidden = Predictor(model_).Predict(load, corrections_).total_us;
  EXPECT_NEAR(hidden, 40 * 130, 90);
  load.sub_batch[0].staged_out_tokens = 100;  // 200: the mover is the limit
  EXPECT_NEAR(Predictor(model_).Predict(load, corrections_).total_us, 40 * 230, 130);
  model_->shared = 0;
  EXPECT_NEAR(Predictor(model_).Predict(load, corrections_).total_us, 40 * 330, 1e-6);
}

// NEO's inequalities are where its order stops hiding the CPU.
TEST_F(PredictorTest, PublishedOrderHidesEachCpuPartBehindTheOtherSubBatch) {
  StepLoad load;
  load.mode = StepMode::kAsymmetric;
  load.sub_batch[0] = Load(4, 12, true);  // CPU 121 against linear(B) + prefill + decode = 180
  load.sub_batch[1] = Load(0, 9, false);  // CPU 91 against linear(A) = 100
  load.order = StageOrder::kPublished;
  EXPECT_NEAR(Predictor(model_).Predict(load, corrections_).total_us / (40 * 280), 1.0, 0.03);
  load.sub_batch[1] = Load(0, 29, false);  // 291 against 100: then the CPU is never idle
  EXPECT_NEAR(Predictor(model_).Predict(load, corrections_).total_us / (40 * 414), 1.0, 0.03);
  const double published = Predictor(model_).Predict(load, corrections_).total_us;
  load.order = StageOrder::kOverlapped;
  EXPECT_LT(Predictor(model_).Predict(load, corrections_).total_us, published);
}

TEST_F(PredictorTest, OneLayerAndNothingAreFine) {
  model_->layers = 1;
  EXPECT_NEAR(Predict(StepMode::kUnified, Load(0, 3, false)).total_us, 131, 1e-6);
  EXPECT_EQ(Predict(StepMode::kGpuOnly, SubBatchLoad()).total_us, 0);
}

}  // namespace
}  // namespace tandem::gpu_worker
