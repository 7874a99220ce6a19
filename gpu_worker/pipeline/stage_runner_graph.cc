// A step's stages as a graph.
#include <algorithm>
#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "gpu_worker/pipeline/stage_runner.h"

namespace tandem::gpu_worker {

absl::Status StageRunner::LaunchGraph(size_t first, size_t last) {
  if (layout_.program.has_cpu_rows[0] || layout_.program.has_cpu_rows[1]) {
    TANDEM_RETURN_IF_ERROR(BeginCpuStep());
  }
  StepGraphs& graphs = *parts_.graphs;
  if (!graphs.Fill(layout_)) {
    return LaunchStages(first, last);
  }
  graph_ = graphs.Find(*shape_);
  if (graph_ == nullptr) {
    absl::StatusOr<StepGraph> captured = Capture(first, last);
    newest_on_.clear();
    if (!captured.ok()) {
      base::LogWarning(
          "a step could not be captured as a graph; from now on steps are launched stage by stage",
          {{"error", captured.status().ToString()}});
      graphs.Disable();
      return LaunchStages(first, last);
    }
    graph_ = &graphs.Add(*shape_, *std::move(captured));
    is_captured_ = true;
  }
  graphs.Launch(*graph_);
  graph_begin_ = first;
  for (size_t i = first; i < last; ++i) {
    const int32_t before = graph_->begins_after[i - first];
    begins_after_[i] = before < 0 ? -1 : before + static_cast<int32_t>(first);
  }
  newest_on_[parts_.compute.get()] = static_cast<int32_t>(last);  // its last stage is a dense one
  return absl::OkStatus();
}

absl::StatusOr<StepGraph> StageRunner::Capture(size_t first, size_t last) {
  StepGraph graph;
  graph.times.resize(last - first);
  graph_begin_ = first;
  recorded_ = &graph;
  absl::StatusOr<std::unique_ptr<ops::CapturedWork>> work =
      parts_.graphs->capture().Capture(shape_->max_context, [&] {
        newest_on_.clear();
        std::fill(begins_after_.begin(), begins_after_.end(), -1);
        return LaunchStages(first, last);
      });
  recorded_ = nullptr;
  if (!work.ok()) {
    return work.status();
  }
  graph.work = *std::move(work);
  for (size_t i = first; i < last; ++i) {
    graph.begins_after.push_back(std::max(-1, begins_after_[i] - static_cast<int32_t>(first)));
  }
  return graph;
}

}  // namespace tandem::gpu_worker
