#pragma once

namespace tandem::gpu_worker {

// How a step's CPU decodes run beside its device work.
enum class StepMode { kGpuOnly, kUnified, kAsymmetric };

// The order of an asymmetric step's stages. kOverlapped: each sub-batch sends as soon as its rows
// stand there. kPublished: NEO's (arXiv 2411.01142), where one host thread joins the other
// sub-batch before it sends; the baseline.
enum class StageOrder { kOverlapped, kPublished };

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
