#include "gpu_worker/cost_model/correction.h"

#include <algorithm>
#include <cmath>

namespace tandem::gpu_worker {
namespace {

// Terms predicted shorter than this say nothing about their rate.
constexpr double kMinTermUs = 1.0;

double WeightOf(double elapsed_us, double time_us) {
  return 1.0 - std::exp(-std::max(elapsed_us, 0.0) / time_us);
}

bool IsTime(double us) { return us > 0 && std::isfinite(us); }

// What the CPU worker needed for the step. It says so itself (`cpu_busy_us`, without the way there
// and back); else only what the device had to wait for is known, and its prediction stands for the
// hidden rest. Negative: nothing is known.
double CpuDecodeUs(const StepPrediction& predicted, const StepTimings& measured) {
  if (IsTime(measured.cpu_busy_us)) {
    return measured.cpu_busy_us + predicted.cpu_exchange_us;
  }
  if (std::isfinite(measured.cpu_decode_us) && measured.cpu_decode_us >= 0) {
    return std::max(predicted.cpu_decode_us - predicted.cpu_wait_us, 0.0) + measured.cpu_decode_us;
  }
  return -1;
}

// Moves the CPU's rate and its fixed time per layer by normalized least mean squares. Else what
// small batches take longer for waking threads would be laid upon each byte, large batches would
// look too slow to be tried, and nothing would ever show otherwise.
void UpdateCpuDecode(const StepPrediction& predicted, double cpu_us, double weight,
                     Corrections* corrections) {
  constexpr double kFixedScale =
      3;  // of the exchange's own time: how far the fixed part may be off
  const double error_us = cpu_us - predicted.cpu_decode_us;
  const double rate_us = std::max(predicted.cpu_decode_us - predicted.cpu_fixed_us, kMinTermUs);
  const double fixed_us = predicted.cpu_posts >= 1 ? kFixedScale * predicted.cpu_exchange_us : 0.0;
  const double norm = rate_us * rate_us + fixed_us * fixed_us;
  const double factor = std::clamp(corrections->cpu_decode * (1 + error_us * rate_us / norm),
                                   1.0 / kMaxCorrection, kMaxCorrection);
  corrections->cpu_decode += weight * (factor - corrections->cpu_decode);
  if (fixed_us > 0) {
    const double more_us = error_us * fixed_us * fixed_us / norm / predicted.cpu_posts;
    const double target = std::clamp(corrections->cpu_fixed_us + more_us, 0.0, kMaxCpuFixedUs);
    corrections->cpu_fixed_us += weight * (target - corrections->cpu_fixed_us);
  }
}

// What no step measures is forgotten; when it is tried again and proves wrong again, more slowly.
void ForgetCpuDecode(double step_us, Corrections* corrections) {
  const double forgotten = WeightOf(step_us, corrections->cpu_forget_us);
  corrections->cpu_decode += forgotten * (1.0 - corrections->cpu_decode);
  corrections->cpu_fixed_us -= forgotten * corrections->cpu_fixed_us;
  corrections->overlap -= WeightOf(step_us, kForgetTimeUs) * corrections->overlap;
  corrections->cpu_tried_at = corrections->cpu_decode;
}

void LearnFromTrial(Corrections* corrections) {
  constexpr double kSlowAgain = 1.25;  // over what it was tried at
  constexpr double kAsPredicted = 1.25;
  if (corrections->cpu_tried_at > 0 &&
      corrections->cpu_decode > kSlowAgain * corrections->cpu_tried_at) {
    corrections->cpu_forget_us = std::min(3 * corrections->cpu_forget_us, kLongestForgetTimeUs);
    corrections->cpu_tried_at = 0;
  } else if (corrections->cpu_decode < kAsPredicted) {
    corrections->cpu_forget_us = kForgetTimeUs;
  }
}

double DeviceTermsUs(const StepPrediction& step) {
  return step.linear_us + step.prefill_us + step.gpu_decode_us + step.copies_us;
}
double DeviceTermsUs(const StepTimings& step) {
  return step.linear_us + step.prefill_us + step.gpu_decode_us + step.copies_us;
}

// A step on the device alone shows what its stages take beside their work.
void UpdateLaunch(const StepPrediction& predicted, const StepTimings& measured, double weight,
                  Corrections* corrections) {
  if (predicted.cpu_decode_us > 0 || predicted.move_out_us > 0 || predicted.copies_us > 0 ||
      predicted.launched < 1 || !IsTime(measured.total_us) || !IsTime(measured.linear_us)) {
    return;
  }
  const double more_us = (measured.total_us - DeviceTermsUs(measured)) -
                         (predicted.total_us - DeviceTermsUs(predicted));
  const double target = std::clamp(corrections->launch_us + more_us / predicted.launched,
                                   -kMaxLaunchUs, kMaxLaunchUs);
  corrections->launch_us += weight * (target - corrections->launch_us);
}

// A step whose terms came as predicted shows in its length how much of them ran side by side.
void UpdateOverlap(const StepPrediction& predicted, const StepTimings& measured, double weight,
                   Corrections* corrections) {
  constexpr double kLeastDifference = 0.1;  // of the step, between both extremes
  constexpr double kLeastAgreement = 0.1;   // of the step, that the terms may be off by
  const double difference_us = predicted.serial_us - predicted.walk_us;
  if (!IsTime(measured.total_us) || !IsTime(measured.cpu_busy_us) || predicted.copies_us > 0 ||
      difference_us < kLeastDifference * predicted.total_us) {
    return;
  }
  const double more_us = DeviceTermsUs(measured) - DeviceTermsUs(predicted) -
                         predicted.move_out_us + measured.cpu_busy_us + predicted.cpu_exchange_us -
                         predicted.cpu_decode_us;
  if (std::abs(more_us) > kLeastAgreement * predicted.total_us) {
    return;
  }
  const double less = (measured.total_us - predicted.total_us - more_us) / difference_us;
  const double target =
      std::clamp(predicted.overlap - less, 0.0, 1.0) - predicted.overlap + corrections->overlap;
  corrections->overlap += weight * (std::clamp(target, -1.0, 1.0) - corrections->overlap);
}

}  // namespace

std::vector<std::pair<const char*, double>> UpdateCorrections(const StepPrediction& predicted,
                                                              const StepTimings& measured,
                                                              Corrections* corrections) {
  std::vector<std::pair<const char*, double>> ratios;
  const double step_us = IsTime(measured.total_us) ? measured.total_us : predicted.total_us;
  const double weight =
      std::clamp(WeightOf(step_us, kCorrectionTimeUs), kSmallestWeight, kLargestWeight);
  const auto update = [&](const char* term, double was, double is, double* factor) {
    if (was < kMinTermUs || !IsTime(is)) {
      return false;
    }
    ratios.emplace_back(term, is / was);
    if (factor != nullptr) {
      const double target = std::clamp(*factor * is / was, 1.0 / kMaxCorrection, kMaxCorrection);
      *factor += weight * (target - *factor);
    }
    return true;
  };
  update("linear", predicted.linear_us, measured.linear_us, &corrections->linear);
  update("prefill", predicted.prefill_us, measured.prefill_us, &corrections->prefill);
  update("gpu_decode", predicted.gpu_decode_us, measured.gpu_decode_us, &corrections->gpu_decode);
  const double cpu_us = IsTime(measured.total_us) ? CpuDecodeUs(predicted, measured) : -1;
  if (update("cpu_decode", predicted.cpu_decode_us, cpu_us, nullptr)) {
    UpdateCpuDecode(predicted, cpu_us, weight, corrections);
    LearnFromTrial(corrections);
  } else {
    ForgetCpuDecode(step_us, corrections);
  }
  update("transfer", predicted.copies_us + predicted.move_out_us, measured.copies_us,
         &corrections->copies);
  UpdateLaunch(predicted, measured, weight, corrections);
  UpdateOverlap(predicted, measured, weight, corrections);
  update("total", predicted.total_us, measured.total_us, nullptr);
  return ratios;
}

}  // namespace tandem::gpu_worker
