#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpu_worker/ops/step_capture.h"
#include "gpu_worker/pipeline/graph_shape.h"
#include "gpu_worker/pipeline/stage_times.h"

namespace tandem::gpu_worker {

// A step's stages between its moves and its sampling, captured.
struct StepGraph {
  std::unique_ptr<ops::CapturedWork> work;
  std::vector<StageTimes> times;      // of those stages, in order; each launch writes them
  std::vector<int32_t> begins_after;  // likewise, as StageRunner has it, counted from the first
  uint64_t last_use = 0;
};

// The captured graphs, a bounded number of them. One thread.
class StepGraphs {
 public:
  static constexpr size_t kMaxGraphs = 48;
  static constexpr int32_t kMaxRows = 512;

  StepGraphs(std::unique_ptr<ops::StepCapture> capture, int64_t row_capacity)
      : capture_(std::move(capture)), row_capacity_(row_capacity) {}

  // Empty for steps that are not captured.
  std::optional<GraphShape> ShapeOf(const StepLayout& layout) const {
    return disabled_ ? std::nullopt : GraphShapeOf(layout, kMaxRows, row_capacity_);
  }
  // Brings the tables of a layout that was filled up; false: they are too many.
  bool Fill(const StepLayout& layout);
  // Null: that shape has none.
  StepGraph* Find(const GraphShape& shape);
  // Keeps it, in place of the one that was used longest ago where there are too many.
  StepGraph& Add(const GraphShape& shape, StepGraph graph);
  ops::StepCapture& capture() { return *capture_; }
  void Launch(StepGraph& graph) {
    graph.last_use = ++uses_;
    capture_->Launch(*graph.work);
  }
  // Capturing failed: no more of it.
  void Disable() { disabled_ = true; }

 private:
  std::unique_ptr<ops::StepCapture> capture_;
  const int64_t row_capacity_;
  std::map<GraphShape, StepGraph> graphs_;
  uint64_t uses_ = 0;
  bool disabled_ = false;
};

}  // namespace tandem::gpu_worker
