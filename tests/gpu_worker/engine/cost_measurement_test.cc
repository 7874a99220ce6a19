#include "gpu_worker/engine/cost_measurement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "tests/gpu_worker/engine/sim_server.h"

namespace tandem::gpu_worker {
namespace {

class CostMeasurementTest : public testing::Test {
 protected:
  CostMeasurementTest() {
    std::string name = testing::TempDir() + "tandem-costs-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    options_.measure_costs = true;
    options_.cost_folder = folder_;
    options_.cost_key = "model a";
    guess_ = MakeRooflineCostModel(A10gRates(100));
    MeasuredRates slower = A10gRates(100);
    slower.memory_bytes_per_us /= 2;
    truth_ = std::make_unique<Predictor>(MakeRooflineCostModel(slower));
  }
  ~CostMeasurementTest() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<CostMeasurement> Make() const {
    return std::make_unique<CostMeasurement>(options_, SimLimits(4096, 16'384), guess_);
  }
  static CostMeasurement::Moment Ready(int64_t now_us = 1'000'000) {
    return {now_us, true, true, 128};
  }

  // Answers every step as the machine would; null when none came out.
  std::shared_ptr<const CostModel> Measure(CostMeasurement& costs) {
    while (costs.is_pending() && costs.IsDue(Ready())) {
      StepInput* step = costs.Next();
      if (step == nullptr) {
        break;
      }
      ++steps_;
      const StepPrediction p = truth_->Predict(LoadOf(*step), Corrections());
      StepOutput output;
      output.timings.total_us = p.total_us;
      output.timings.linear_us = p.linear_us;
      output.timings.prefill_us = p.prefill_us;
      output.timings.gpu_decode_us = p.gpu_decode_us;
      output.timings.cpu_decode_us = p.cpu_wait_us;
      output.timings.copies_us = p.copies_us;
      costs.Record(output);
    }
    return costs.TakeModel();
  }

  std::string File() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      return entry.path();
    }
    return "";
  }

  std::string folder_;
  EngineOptions options_;
  std::shared_ptr<const CostModel> guess_;
  std::unique_ptr<Predictor> truth_;
  int steps_ = 0;
};

TEST_F(CostMeasurementTest, MeasuresOnceAndReadsItTheNextTime) {
  const auto first = Make();
  const auto model = Measure(*first);
  ASSERT_NE(model, nullptr);
  EXPECT_FALSE(first->is_pending());
  EXPECT_NEAR(model->LinearUs(1) / guess_->LinearUs(1), 2.0, 0.1);
  EXPECT_GT(steps_, 20);
  steps_ = 0;
  const auto second = Make();
  ASSERT_TRUE(second->IsDue(Ready()));
  EXPECT_EQ(second->Next(), nullptr) << "nothing to measure";
  const auto read = second->TakeModel();
  ASSERT_NE(read, nullptr);
  EXPECT_DOUBLE_EQ(read->LinearUs(1), model->LinearUs(1));
}

TEST_F(CostMeasurementTest, AnotherKeyIsMeasuredAnew) {
  ASSERT_NE(Measure(*Make()), nullptr);
  options_.cost_key = "model b";
  const auto other = Make();
  ASSERT_TRUE(other->IsDue(Ready()));
  EXPECT_NE(other->Next(), nullptr);
  options_.cost_key = "model a";
  const auto same = Make();
  same->SetCpuWorker("avx2 on 3 cores");
  ASSERT_TRUE(same->IsDue(Ready()));
  EXPECT_NE(same->Next(), nullptr) << "the CPU attention worker is another one";
}

TEST_F(CostMeasurementTest, ADamagedFileIsNeverUsed) {
  ASSERT_NE(Measure(*Make()), nullptr);
  const std::string path = File();
  const auto size = std::filesystem::file_size(path);
  for (const auto kept : {size / 2, uintmax_t{0}}) {
    std::filesystem::resize_file(path, kept);
    const auto costs = Make();
    ASSERT_TRUE(costs->IsDue(Ready()));
    EXPECT_NE(costs->Next(), nullptr) << "measured anew";
    EXPECT_EQ(costs->TakeModel(), nullptr);
  }
  {
    std::ofstream file(path);
    file << "tandem cost tables 1\nsha256 0\nkey model a\n";
  }
  const auto costs = Make();
  ASSERT_TRUE(costs->IsDue(Ready()));
  EXPECT_NE(costs->Next(), nullptr);
}

TEST_F(CostMeasurementTest, WaitsForRestAndForTheCpuWorker) {
  const auto costs = Make();
  EXPECT_FALSE(costs->IsDue({1'000'000, true, false, 128})) << "no worker yet";
  EXPECT_FALSE(costs->IsDue({1'000'000, true, true, 127}))
      << "the rest of its pool is still being touched, which takes a core";
  EXPECT_TRUE(costs->IsDue({1'000'000, false, false, 0})) << "with --offload off it is not needed";
  const auto busy = Make();
  busy->OnWork(1'000'000);
  EXPECT_FALSE(busy->IsDue(Ready(1'100'000)));
  EXPECT_TRUE(busy->IsDue(Ready(1'400'000)));
}

TEST_F(CostMeasurementTest, NothingIsMeasuredWhenItIsOff) {
  options_.measure_costs = false;
  const auto costs = Make();
  EXPECT_FALSE(costs->is_pending());
  EXPECT_FALSE(costs->IsDue(Ready()));
}

TEST_F(CostMeasurementTest, FailuresEndWithTheFirstGuess) {
  const auto costs = Make();
  while (costs->is_pending() && costs->IsDue(Ready())) {
    ASSERT_NE(costs->Next(), nullptr);
    costs->Record(absl::InternalError("broken"));
  }
  EXPECT_FALSE(costs->is_pending());
  EXPECT_EQ(costs->TakeModel(), nullptr);
  EXPECT_EQ(File(), "");
}

}  // namespace
}  // namespace tandem::gpu_worker
