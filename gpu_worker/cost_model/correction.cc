#include "gpu_worker/cost_model/correction.h"

#include <algorithm>
#include <cmath>

namespace tandem::gpu_worker {
namespace {

// Terms predicted shorter than this say nothing about their rate.
constexpr double kMinTermUs = 1.0;

void MoveTowards(double ratio, double* factor) {
  const double target = std::clamp(*factor * ratio, 1.0 / kMaxCorrection, kMaxCorrection);
  *factor += kCorrectionWeight * (target - *factor);
}

}  // namespace

std::vector<std::pair<const char*, double>> UpdateCorrections(const StepPrediction& predicted,
                                                              const StepTimings& measured,
                                                              Corrections* corrections) {
  std::vector<std::pair<const char*, double>> ratios;
  const auto update = [&ratios](const char* term, double was, double is, double* factor) {
    if (was < kMinTermUs || !(is > 0) || !std::isfinite(is)) {
      return;
    }
    ratios.emplace_back(term, is / was);
    if (factor != nullptr) {
      MoveTowards(is / was, factor);
    }
  };
  update("linear", predicted.linear_us, measured.linear_us, &corrections->linear);
  update("prefill", predicted.prefill_us, measured.prefill_us, &corrections->prefill);
  update("gpu_decode", predicted.gpu_decode_us, measured.gpu_decode_us, &corrections->gpu_decode);
  // The device sees only the exposed part of the CPU worker's time. Its own estimate of the rest
  // stands until something of it is exposed.
  if (predicted.cpu_decode_us >= kMinTermUs && std::isfinite(measured.cpu_decode_us) &&
      measured.cpu_decode_us >= 0 && measured.total_us > 0) {
    const double hidden = std::max(predicted.cpu_decode_us - predicted.cpu_wait_us, 0.0);
    const double seen = hidden + measured.cpu_decode_us;
    update("cpu_decode", predicted.cpu_decode_us, seen, &corrections->cpu_decode);
  }
  update("transfer", predicted.copies_us, measured.copies_us, &corrections->copies);
  update("total", predicted.total_us, measured.total_us, nullptr);
  return ratios;
}

}  // namespace tandem::gpu_worker
