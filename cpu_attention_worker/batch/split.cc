#include "cpu_attention_worker/batch/split.h"

#include <algorithm>

namespace tandem::cpu_attention_worker {
namespace {

// Segments in this range lose little to merging and keep the accumulators in cache (docs of the
// layout study: block outer, head inner, 512 to 2,048 tokens).
constexpr int64_t kMinSegmentTokens = 512;
constexpr int64_t kMaxSegmentTokens = 2048;
// More tasks than threads, so that a thread that loses its core for a while is helped.
constexpr int64_t kTasksPerThread = 4;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The most tokens of a segment, and how many (token, all heads) units a task of a small batch
// holds.
struct Grain {
  int64_t segment_tokens = kMaxSegmentTokens;
  int64_t small_task_tokens = 0;  // 0: the batch is large, heads stay together
};

Grain ChooseGrain(int64_t total_tokens, const SplitShape& shape) {
  Grain grain;
  if (total_tokens <= kMinSegmentTokens * shape.num_threads) {
    grain.small_task_tokens = CeilDivide(total_tokens, shape.num_threads);
    return grain;
  }
  const int64_t even = CeilDivide(total_tokens, shape.num_threads * kTasksPerThread);
  grain.segment_tokens = std::clamp(even, kMinSegmentTokens, kMaxSegmentTokens);
  return grain;
}

void SplitRow(int32_t row, int64_t tokens, const Grain& grain, const SplitShape& shape,
              Split* split) {
  int64_t head_ranges = 1;
  int64_t segment = CeilDivide(tokens, CeilDivide(tokens, grain.segment_tokens));
  if (grain.small_task_tokens > 0) {
    const int64_t pieces = CeilDivide(tokens, grain.small_task_tokens);
    head_ranges = std::min<int64_t>(pieces, shape.num_kv_heads);
    segment = CeilDivide(tokens, CeilDivide(pieces, head_ranges));
  }
  segment = CeilDivide(segment, shape.block_tokens) * shape.block_tokens;

  RowSplit row_split;
  row_split.num_segments = static_cast<int32_t>(CeilDivide(tokens, segment));
  row_split.num_tasks = row_split.num_segments * static_cast<int32_t>(head_ranges);
  row_split.first_partial = split->num_partials;
  if (row_split.num_segments > 1) {
    split->num_partials += row_split.num_segments;
  }
  split->rows.push_back(row_split);
  for (int32_t i = 0; i < row_split.num_segments; ++i) {
    Task task;
    task.row = row;
    task.first_token = i * segment;
    task.num_tokens = std::min(segment, tokens - task.first_token);
    task.segment = i;
    for (int64_t range = 0; range < head_ranges; ++range) {
      task.kv_head_begin = static_cast<int32_t>(shape.num_kv_heads * range / head_ranges);
      task.kv_head_end = static_cast<int32_t>(shape.num_kv_heads * (range + 1) / head_ranges);
      split->tasks.push_back(task);
    }
  }
}

int64_t WorkOf(const Task& task) {
  return task.num_tokens * (task.kv_head_end - task.kv_head_begin);
}

// A task goes to the thread in whose share of the total its middle lies.
void AssignThreads(int32_t num_threads, Split* split) {
  int64_t total = 0;
  for (const Task& task : split->tasks) {
    total += WorkOf(task);
  }
  split->thread_begin.assign(static_cast<size_t>(num_threads) + 1,
                             static_cast<int32_t>(split->tasks.size()));
  split->thread_begin[0] = 0;
  int64_t before = 0;
  int32_t thread = 0;
  for (size_t i = 0; i < split->tasks.size(); ++i) {
    const int64_t work = WorkOf(split->tasks[i]);
    const auto owner = static_cast<int32_t>((2 * before + work) * num_threads / (2 * total));
    for (; thread < owner; ++thread) {
      split->thread_begin[static_cast<size_t>(thread) + 1] = static_cast<int32_t>(i);
    }
    before += work;
  }
}

}  // namespace

Split SplitBatch(std::span<const int64_t> context_tokens, const SplitShape& shape) {
  Split split;
  int64_t total = 0;
  for (const int64_t tokens : context_tokens) {
    total += tokens;
  }
  const Grain grain = ChooseGrain(total, shape);
  split.rows.reserve(context_tokens.size());
  for (size_t row = 0; row < context_tokens.size(); ++row) {
    SplitRow(static_cast<int32_t>(row), context_tokens[row], grain, shape, &split);
  }
  AssignThreads(shape.num_threads, &split);
  return split;
}

}  // namespace tandem::cpu_attention_worker
