#include "cpu_attention_worker/batch/split.h"

#include <algorithm>

namespace tandem::cpu_attention_worker {
namespace {

// A batch with less than this for each thread is cut by heads.
constexpr int64_t kLongShareTokens = 512;
// A share's first segments are long and its last ones short (half of what is left of it), so that
// whoever is done first finds little to wait for. All heads of a segment are read in the longest
// runs of memory (docs/kv_layout.md).
constexpr int64_t kMaxSegmentTokens = 2048;
constexpr int64_t kMinSegmentTokens = 128;
// Of a small batch, where every further segment is one more to merge.
constexpr int64_t kSmallTasksPerThread = 2;
constexpr int64_t kMinSmallSegmentTokens = 64;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t value, int64_t step) { return CeilDivide(value, step) * step; }

// Appends the row's tasks segment by segment and keeps its counts.
class RowBuilder {
 public:
  RowBuilder(int32_t row, Split* split) : row_(row), split_(split) {}

  void Add(int64_t first_token, int64_t num_tokens, int32_t head_begin, int32_t head_end) {
    split_->tasks.push_back(
        {row_, first_token, num_tokens, head_begin, head_end, row_split_.num_segments});
    ++row_split_.num_tasks;
  }
  void EndSegment() { ++row_split_.num_segments; }
  void EndRow() {
    row_split_.first_partial = split_->num_partials;
    if (row_split_.num_segments > 1) {
      split_->num_partials += row_split_.num_segments;
    }
    split_->rows.push_back(row_split_);
  }

 private:
  const int32_t row_;
  Split* const split_;
  RowSplit row_split_;
};

// Along the tokens, all heads together: cut where a thread's share ends, at the nearest border of
// blocks, and before that into segments that become shorter.
void SplitLongRows(std::span<const int64_t> rows, int64_t total, const SplitShape& shape,
                   Split* split) {
  const int64_t step = std::max<int64_t>(shape.block_tokens, kMinSegmentTokens);
  int64_t before = 0;  // tokens of earlier rows
  int64_t share = 1;   // ends at share * total / threads
  const auto border = [&] { return share * total / shape.num_threads - before; };  // in the row
  for (size_t i = 0; i < rows.size(); ++i) {
    RowBuilder row(static_cast<int32_t>(i), split);
    for (int64_t begin = 0; begin < rows[i];) {
      while (share < shape.num_threads && border() - begin <= step / 2) {
        ++share;
      }
      const int64_t wanted = std::min((border() - begin) / 2, kMaxSegmentTokens);
      int64_t end = begin + RoundUp(std::max(wanted, step), step);
      const int64_t cut = (border() + step / 2) / step * step;
      if (cut > begin) {
        end = std::min(end, cut);
      }
      if (rows[i] - end < step / 2) {  // too little for a segment
        end = rows[i];
      }
      row.Add(begin, end - begin, 0, shape.num_kv_heads);
      row.EndSegment();
      begin = end;
    }
    row.EndRow();
    before += rows[i];
  }
}

// A batch too small for that is cut by heads where a thread's share ends, since that needs no
// merge, and along the tokens only as far as there are too few heads.
void SplitShortRows(std::span<const int64_t> rows, int64_t total, const SplitShape& shape,
                    Split* split) {
  const int64_t threads = shape.num_threads;
  const int64_t heads = shape.num_kv_heads;
  const int64_t pairs = std::max<int64_t>(total * heads, 1);
  int64_t before = 0;  // (token, head) pairs of earlier segments
  int64_t share = 1;   // ends at share * pairs / threads
  for (size_t i = 0; i < rows.size(); ++i) {
    RowBuilder row(static_cast<int32_t>(i), split);
    const int64_t wanted = CeilDivide(rows[i] * threads * kSmallTasksPerThread, pairs);
    const int64_t segments =
        std::clamp<int64_t>(wanted, 1, CeilDivide(rows[i], kMinSmallSegmentTokens));
    const int64_t length = RoundUp(CeilDivide(rows[i], segments), kSegmentGrain);
    for (int64_t begin = 0; begin < rows[i]; begin += length) {
      const int64_t tokens = std::min(length, rows[i] - begin);
      int64_t head = 0;
      for (; share < threads; ++share) {
        const int64_t border = share * pairs / threads - before;
        if (border > tokens * heads) {
          break;
        }
        const int64_t cut = std::min(heads, (border + tokens / 2) / tokens);
        if (cut > head) {
          row.Add(begin, tokens, static_cast<int32_t>(head), static_cast<int32_t>(cut));
          head = cut;
        }
      }
      if (head < heads) {
        row.Add(begin, tokens, static_cast<int32_t>(head), shape.num_kv_heads);
      }
      row.EndSegment();
      before += tokens * heads;
    }
    row.EndRow();
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
  if (total == 0) {
    return;
  }
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
  split.rows.reserve(context_tokens.size());
  if (total >= kLongShareTokens * shape.num_threads) {
    SplitLongRows(context_tokens, total, shape, &split);
  } else {
    SplitShortRows(context_tokens, total, shape, &split);
  }
  AssignThreads(shape.num_threads, &split);
  return split;
}

}  // namespace tandem::cpu_attention_worker
