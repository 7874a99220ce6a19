#include "cli/plan/simulated_runner.h"

#include <algorithm>

namespace tandem::cli {
namespace {

using gpu_worker::SequenceWork;
using gpu_worker::StepInput;
using gpu_worker::StepOutput;

constexpr int32_t kToken = 1;

}  // namespace

absl::StatusOr<StepOutput> SimulatedRunner::Run(const StepInput& input) {
  last_step_ = predictor_.Predict(gpu_worker::LoadOf(input), disturbance_);
  StepOutput output;
  for (const auto& sub_batch : input.sub_batch) {
    for (const SequenceWork& work : sub_batch) {
      if (work.sample.has_value()) {
        gpu_worker::SequenceOutput& sequence = output.sequences.emplace_back();
        sequence.sequence_id = work.sequence_id;
        sequence.token = kToken;
      }
    }
  }
  output.timings.total_us = last_step_.total_us;
  output.timings.linear_us = last_step_.linear_us;
  output.timings.prefill_us = last_step_.prefill_us;
  output.timings.gpu_decode_us = last_step_.gpu_decode_us;
  output.timings.cpu_decode_us = last_step_.cpu_wait_us;
  output.timings.copies_us = last_step_.copies_us + last_step_.move_out_us;
  // The worker's own clock does not see the way to it and back.
  output.timings.cpu_busy_us = std::max(last_step_.cpu_decode_us - last_step_.cpu_exchange_us, 0.0);
  return output;
}

}  // namespace tandem::cli
