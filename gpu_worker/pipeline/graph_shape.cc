#include "gpu_worker/pipeline/graph_shape.h"

#include <algorithm>

#include "gpu_worker/ops/linear.h"

namespace tandem::gpu_worker {
namespace {

// An eighth or so is wasted at most, from 64 rows on.
int32_t FilledUp(int32_t rows) {
  const int32_t step = rows <= 4 ? 1 : rows <= 64 ? 8 : rows <= 256 ? 16 : 32;
  return (rows + step - 1) / step * step;
}

// Contexts decide only over how many blocks of threads they are split.
int32_t RoundedContext(int32_t context) {
  int32_t rounded = 1024;
  while (rounded < context) {
    rounded *= 4;
  }
  return rounded;
}

}  // namespace

std::optional<GraphShape> GraphShapeOf(const StepLayout& layout, int32_t max_rows,
                                       int64_t row_capacity) {
  GraphShape shape;
  shape.mode = layout.program.mode;
  shape.order = layout.program.order;
  shape.max_context = RoundedContext(layout.max_position);
  int64_t end = 0;
  for (int x = 0; x < 2; ++x) {
    const SubBatchLayout& rows = layout.sub_batch[x];
    if (!rows.prefill.empty() || !rows.cpu_prefill.empty()) {
      return std::nullopt;
    }
    shape.rows[x] = rows.rows.count > 0 ? FilledUp(rows.rows.count) : 0;
    shape.has_device_rows[x] = !rows.decode.empty();
    shape.has_cpu_rows[x] = !rows.cpu_rows.empty();
    end += ops::LinearRows(shape.rows[x]);
  }
  const int32_t total = shape.rows[0] + shape.rows[1];
  if (total == 0 || total > max_rows || end > row_capacity) {
    return std::nullopt;
  }
  return shape;
}

void FillUp(const GraphShape& shape, StepLayout* layout) {
  SubBatchLayout& second = layout->sub_batch[1];
  const int32_t first_row = static_cast<int32_t>(ops::LinearRows(shape.rows[0]));
  const int32_t move = first_row - second.rows.first;
  for (LogitRow& row : layout->logit_rows) {
    row.row += row.row >= second.rows.first && second.rows.count > 0 ? move : 0;
  }
  for (std::vector<ops::RowRun>* runs : {&second.store, &second.decode}) {
    for (ops::RowRun& run : *runs) {
      run.first_row += move;
    }
  }
  for (int32_t& row : second.cpu_rows) {
    row += move;
  }
  second.rows.first = first_row;
  for (int x = 0; x < 2; ++x) {
    SubBatchLayout& rows = layout->sub_batch[x];
    const auto count = static_cast<size_t>(shape.rows[x]);
    rows.rows.count = shape.rows[x];
    rows.tokens.resize(count, 0);
    rows.positions.resize(count, 0);
    if (shape.has_device_rows[x]) {
      rows.store.resize(count);
      rows.decode.resize(count);
    }
    if (shape.has_cpu_rows[x]) {
      rows.cpu_rows.resize(count, -1);
    }
  }
}

}  // namespace tandem::gpu_worker
