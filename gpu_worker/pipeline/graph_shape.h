#pragma once

#include <compare>
#include <cstdint>
#include <optional>

#include "gpu_worker/pipeline/step_layout.h"

// Which steps can share a captured graph: those of decodes alone that are alike once their rows are
// filled up. Pure.
namespace tandem::gpu_worker {

struct GraphShape {
  StepMode mode = StepMode::kGpuOnly;
  StageOrder order = StageOrder::kOverlapped;
  int32_t rows[2] = {0, 0};  // of the sub-batches, filled up
  bool has_device_rows[2] = {false, false};
  bool has_cpu_rows[2] = {false, false};
  int32_t max_context = 0;  // tokens, rounded up

  friend auto operator<=>(const GraphShape&, const GraphShape&) = default;
};

// Empty for steps that are not of decodes alone, or are too large once filled up: more than
// `max_rows` rows, or, with their places in the activations, more than `row_capacity`.
std::optional<GraphShape> GraphShapeOf(const StepLayout& layout, int32_t max_rows,
                                       int64_t row_capacity);

// Fills the layout up to its shape, with rows that nothing is read from: tokens and positions of 0,
// runs without rows, CPU rows of -1. Rows of sub-batch B move behind A's.
void FillUp(const GraphShape& shape, StepLayout* layout);

}  // namespace tandem::gpu_worker
