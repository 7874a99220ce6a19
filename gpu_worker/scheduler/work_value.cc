#include "gpu_worker/scheduler/work_value.h"

#include <algorithm>

namespace tandem::gpu_worker {
namespace {

// Rows at which every device has left the part where reading weights decides.
constexpr int64_t kManyRows = 2048;

}  // namespace

double MeanContext(const WorkloadMix& mix) {
  return std::max(mix.prompt_tokens + mix.output_tokens / 2, 1.0);
}

double DeviceConcurrency(const SchedulerState& state, const StepBounds& bounds) {
  const double pool_tokens =
      static_cast<double>(state.gpu.total_blocks) * static_cast<double>(state.gpu.block_tokens);
  const double seen = state.mix.device_sequences;
  const double held = pool_tokens / MeanContext(state.mix);
  return std::clamp(seen > 0 ? std::min(seen, held) : held, 1.0,
                    static_cast<double>(std::max(bounds.max_sequences, 1)));
}

double DecodesPerStep(const WorkloadMix& mix, double sequences, const StepBounds& bounds) {
  return std::min(sequences, bounds.max_rows / (1 + mix.prompt_rows_per_decode()));
}

double PrefillRowUs(const Predictor& predictor, const SchedulerState& state) {
  const CostModel& model = predictor.model();
  const auto prompt = static_cast<int64_t>(std::max(state.mix.prompt_tokens, 1.0));
  constexpr int64_t kHalf = kManyRows / 2;
  const double dense_us =
      (model.LinearUs(kManyRows) - model.LinearUs(kHalf)) / static_cast<double>(kHalf);
  const double attention_us = model.PrefillUs(prompt, 0) / static_cast<double>(prompt);
  return model.num_layers() * (state.corrections.linear * std::max(dense_us, 0.0) +
                               state.corrections.prefill * attention_us);
}

}  // namespace tandem::gpu_worker
