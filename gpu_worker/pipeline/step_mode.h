#pragma once

namespace tandem::gpu_worker {

// How a step's CPU decodes run beside its device work.
enum class StepMode { kGpuOnly, kUnified, kAsymmetric };

// "gpu_only", "unified", "asymmetric": the metric's label.
constexpr const char* StepModeName(StepMode mode) {
  switch (mode) {
    case StepMode::kGpuOnly:
      return "gpu_only";
    case StepMode::kUnified:
      return "unified";
    case StepMode::kAsymmetric:
      return "asymmetric";
  }
  return "unknown";
}

}  // namespace tandem::gpu_worker
