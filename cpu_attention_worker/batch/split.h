#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tandem::cpu_attention_worker {

// Segments start at multiples of this, two K sub-tiles: what every kernel takes whole.
inline constexpr int64_t kSegmentGrain = 32;

// A piece of work of one thread: some tokens of one row for some KV heads.
struct Task {
  int32_t row = 0;
  int64_t first_token = 0;  // a multiple of kSegmentGrain
  int64_t num_tokens = 0;
  int32_t kv_head_begin = 0;
  int32_t kv_head_end = 0;
  int32_t segment = 0;  // of the row; all head ranges of a segment share it
};

// How one row was cut.
struct RowSplit {
  int32_t num_segments = 0;   // along the tokens; more than one: results have to be merged
  int32_t num_tasks = 0;      // segments times head ranges
  int32_t first_partial = 0;  // index of the row's first partial result when num_segments > 1
};

// Tasks of a batch, in the order of rows and tokens. Thread i starts with tasks [thread_begin[i],
// thread_begin[i + 1]) and then helps others.
struct Split {
  std::vector<Task> tasks;
  std::vector<RowSplit> rows;
  std::vector<int32_t> thread_begin;  // num_threads + 1
  int32_t num_partials = 0;
};

struct SplitShape {
  int32_t num_kv_heads = 1;
  int32_t block_tokens = 128;
  int32_t num_threads = 1;
};

// Splits rows of the given context lengths (>= 1) so that threads get equal numbers of (token,
// head) pairs, to within half a block or half a head: along the tokens in segments of 2,048 down
// to 128 with all heads, the shorter the less is left of a thread's share; a batch too small for
// that along the heads first, since that needs no merge. Pure.
Split SplitBatch(std::span<const int64_t> context_tokens, const SplitShape& shape);

}  // namespace tandem::cpu_attention_worker
