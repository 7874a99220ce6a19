#pragma once

#include <array>
#include <memory>

#include "gpu_worker/cost_model/correction.h"
#include "gpu_worker/cost_model/cost_model.h"
#include "gpu_worker/cost_model/step_load.h"
#include "gpu_worker/pipeline/stage_program.h"

namespace tandem::gpu_worker {

// Times of one sub-batch in one layer, corrected. Microseconds.
struct LayerTerms {
  double linear_us = 0;
  double prefill_us = 0;  // what CPU prefills copy in included
  double gpu_decode_us = 0;
  double transfer_us = 0;
  double cpu_decode_us = 0;
  double move_out_us = 0;  // of CPU prefills, on a copy engine of its own

  double device_us() const { return linear_us + prefill_us + gpu_decode_us; }
};

// What a step runs as, and what it copies between the pools first.
struct StepShape {
  StepMode mode = StepMode::kGpuOnly;
  StageOrder order = StageOrder::kOverlapped;
  int64_t copied_gpu_tokens = 0;  // as in StepLoad
};

// Predicts step times by walking the step's stage program. All layers of a step cost the same, so
// a few layers are walked and the rest follows from what one more layer adds. Immutable after
// construction; any thread.
class Predictor {
 public:
  explicit Predictor(std::shared_ptr<const CostModel> model);

  LayerTerms TermsOf(const SubBatchLoad& load, const Corrections& corrections) const;
  StepPrediction Predict(const StepLoad& load, const Corrections& corrections) const;
  // The same with the terms of both sub-batches at hand.
  StepPrediction PredictTerms(const StepShape& shape, const std::array<LayerTerms, 2>& terms,
                              const Corrections& corrections) const;
  // Corrected.
  double CpuDecodeUs(int64_t sequences, int64_t context_tokens,
                     const Corrections& corrections) const;
  // Per stage, and how much of device and CPU work runs side by side; corrected.
  double LaunchUs(const Corrections& corrections) const;
  double Overlap(const Corrections& corrections) const;
  const CostModel& model() const { return *model_; }

 private:
  std::shared_ptr<const CostModel> model_;
  int32_t walked_layers_;
};

}  // namespace tandem::gpu_worker
