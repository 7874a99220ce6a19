#include "gpu_worker/pipeline/step_graphs.h"

#include <algorithm>
#include <utility>

namespace tandem::gpu_worker {

bool StepGraphs::Fill(const StepLayout& layout) {
  std::vector<ops::DecodeTables> tables;
  for (const SubBatchLayout& rows : layout.sub_batch) {
    tables.push_back({rows.tokens, rows.positions, rows.store, rows.decode, rows.cpu_rows});
  }
  return capture_->Fill(tables);
}

StepGraph* StepGraphs::Find(const GraphShape& shape) {
  const auto found = graphs_.find(shape);
  return found == graphs_.end() ? nullptr : &found->second;
}

StepGraph& StepGraphs::Add(const GraphShape& shape, StepGraph graph) {
  if (graphs_.size() >= kMaxGraphs) {
    graphs_.erase(std::min_element(
        graphs_.begin(), graphs_.end(),
        [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; }));
  }
  return graphs_.insert_or_assign(shape, std::move(graph)).first->second;
}

}  // namespace tandem::gpu_worker
