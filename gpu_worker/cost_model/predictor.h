#pragma once

#include <array>
#include <memory>
#include <vector>

#include "gpu_worker/cost_model/correction.h"
#include "gpu_worker/cost_model/cost_model.h"
#include "gpu_worker/cost_model/step_load.h"
#include "gpu_worker/pipeline/stage_program.h"

namespace tandem::gpu_worker {

// Times of one sub-batch in one layer, corrected. Microseconds.
struct LayerTerms {
  double linear_us = 0;
  double prefill_us = 0;  // staging of CPU prefills included
  double gpu_decode_us = 0;
  double transfer_us = 0;
  double cpu_decode_us = 0;
};

// Predicts step times by walking the step's stage program. All layers of a step cost the same, so
// a few layers are walked and the rest follows from what one more layer adds. Immutable after
// construction; any thread.
class Predictor {
 public:
  explicit Predictor(std::shared_ptr<const CostModel> model);

  LayerTerms TermsOf(const SubBatchLoad& load, const Corrections& corrections) const;
  StepPrediction Predict(const StepLoad& load, const Corrections& corrections) const;
  // The same with the terms of both sub-batches at hand; `copied_gpu_tokens` as in StepLoad.
  StepPrediction PredictTerms(StepMode mode, const std::array<LayerTerms, 2>& terms,
                              int64_t copied_gpu_tokens, const Corrections& corrections) const;
  const CostModel& model() const { return *model_; }

 private:
  // How many layers are walked: the pipeline of two sub-batches is in its steady state by then.
  static constexpr int32_t kWalkedLayers = 4;

  size_t ProgramIndex(StepMode mode, int32_t flags, int32_t layers) const;

  std::shared_ptr<const CostModel> model_;
  int32_t walked_layers_;
  // By mode, then which sub-batches have rows (bits 0, 1) and CPU rows (bits 2, 3), then whether it
  // has the full number of walked layers or one less.
  std::vector<std::vector<Stage>> programs_;
};

}  // namespace tandem::gpu_worker
