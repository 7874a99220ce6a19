#pragma once

#include <memory>
#include <utility>

#include "gpu_worker/cost_model/predictor.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::cli {

// Executes steps in no time: their times come from a walk of the step's stage program with a cost
// model, every token is the same. One thread.
class SimulatedRunner : public gpu_worker::StepRunner {
 public:
  SimulatedRunner(const gpu_worker::RunnerLimits& limits,
                  std::shared_ptr<const gpu_worker::CostModel> cost_model)
      : limits_(limits), predictor_(std::move(cost_model)) {}

  const gpu_worker::RunnerLimits& limits() const override { return limits_; }
  gpu_worker::MeasuredRates MeasureRates() override { return {}; }
  absl::StatusOr<gpu_worker::StepOutput> Run(const gpu_worker::StepInput& input) override;

  // How much longer than by the cost model each term takes from now on: what the scheduler has to
  // find out.
  void set_disturbance(const gpu_worker::Corrections& factors) { disturbance_ = factors; }
  const gpu_worker::StepPrediction& last_step() const { return last_step_; }

 private:
  const gpu_worker::RunnerLimits limits_;
  const gpu_worker::Predictor predictor_;
  gpu_worker::Corrections disturbance_;
  gpu_worker::StepPrediction last_step_;
};

}  // namespace tandem::cli
