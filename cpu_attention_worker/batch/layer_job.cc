#include "cpu_attention_worker/batch/layer_job.h"

#include <algorithm>
#include <cstring>

namespace tandem::cpu_attention_worker {
LayerJob::LayerJob(const exchange::Geometry& geometry, attention::AttendSegmentFn attend,
                   int num_threads)
    : geometry_(geometry),
      pool_geometry_(exchange::PoolGeometryOf(geometry)),
      attend_(attend),
      store_row_(attention::GetStoreRow(attention::SupportedIsas().front())),
      num_threads_(num_threads),
      compute_dtype_(static_cast<DType>(geometry.compute_dtype)),
      q_row_(size_t{geometry.num_q_heads} * geometry.head_dim),
      kv_row_(size_t{geometry.num_kv_heads} * geometry.head_dim),
      element_bytes_(static_cast<size_t>(DTypeBytes(compute_dtype_))),
      scratch_(static_cast<size_t>(num_threads)),
      next_task_(std::make_unique<Counter[]>(static_cast<size_t>(num_threads))) {
  for (Scratch& scratch : scratch_) {
    scratch.out.resize(q_row_);
    scratch.log_sum_exp.resize(geometry.num_q_heads);
  }
}

void LayerJob::Prepare(const exchange::StepSlot& step, const SlotBuffers& buffers) {
  step_ = &step;
  buffers_ = buffers;
  context_tokens_.clear();
  uint64_t tokens = 0;
  for (const exchange::RowDescriptor& row : step.rows) {
    context_tokens_.push_back(row.context_tokens);
    tokens += row.context_tokens;
  }
  layer_read_bytes_ = tokens * pool_geometry_.token_bytes();
  split_ = SplitBatch(context_tokens_,
                      {pool_geometry_.num_kv_heads, pool_geometry_.block_tokens, num_threads_});
  const auto partials = static_cast<size_t>(split_.num_partials);
  partial_out_.resize(partials * q_row_);
  partial_lse_.resize(partials * geometry_.num_q_heads);
  if (pending_capacity_ < step.rows.size()) {
    pending_capacity_ = step.rows.size();
    pending_ = std::make_unique<std::atomic<int32_t>[]>(pending_capacity_);
  }
}

void LayerJob::BeginLayer(int32_t layer) {
  layer_ = layer;
  for (int member = 0; member < num_threads_; ++member) {
    next_task_[static_cast<size_t>(member)].value.store(
        split_.thread_begin[static_cast<size_t>(member)], std::memory_order_relaxed);
  }
  for (size_t row = 0; row < split_.rows.size(); ++row) {
    pending_[row].store(split_.rows[row].num_tasks, std::memory_order_relaxed);
  }
}

int32_t LayerJob::NextTask(int member) {
  // Own tasks first, then what the others have not started.
  for (int i = 0; i < num_threads_; ++i) {
    const auto owner = static_cast<size_t>((member + i) % num_threads_);
    std::atomic<int32_t>& next = next_task_[owner].value;
    const int32_t end = split_.thread_begin[owner + 1];
    if (next.load(std::memory_order_relaxed) >= end) {
      continue;
    }
    const int32_t task = next.fetch_add(1, std::memory_order_relaxed);
    if (task < end) {
      return task;
    }
  }
  return -1;
}

void LayerJob::Work(int member, const std::function<bool()>& leave) {
  Scratch* scratch = &scratch_[static_cast<size_t>(member)];
  while (!leave()) {
    const int32_t task = NextTask(member);
    if (task < 0) {
      return;
    }
    RunTask(split_.tasks[static_cast<size_t>(task)], scratch);
  }
}

void LayerJob::ListReads(int32_t layer, int first_member, int end_member,
                         PrefetchList* list) const {
  const int32_t end = split_.thread_begin[static_cast<size_t>(end_member)];
  for (int32_t i = split_.thread_begin[static_cast<size_t>(first_member)]; i < end; ++i) {
    if (!ListTask(split_.tasks[static_cast<size_t>(i)], layer, list)) {
      return;
    }
  }
}

bool LayerJob::ListTask(const Task& task, int32_t layer, PrefetchList* list) const {
  const kv::PoolGeometry& pool = pool_geometry_;
  const int32_t* table = step_->Table(step_->rows[static_cast<size_t>(task.row)]);
  const auto heads = static_cast<size_t>(task.kv_head_end - task.kv_head_begin);
  for (int64_t done = 0; done < task.num_tokens; done += pool.block_tokens) {
    const int32_t block = table[(task.first_token + done) / pool.block_tokens];
    const std::byte* head = buffers_.pool + pool.HeadOffset(block, layer, task.kv_head_begin);
    const int64_t tokens = std::min<int64_t>(task.num_tokens - done, pool.block_tokens);
    if (tokens == pool.block_tokens) {
      if (!list->Add(head, heads * pool.head_bytes())) {
        return false;
      }
      continue;
    }
    // Of a block that is not full the tokens' share of each tile.
    const size_t share =
        pool.scales_offset() * static_cast<size_t>(tokens) / static_cast<size_t>(pool.block_tokens);
    for (size_t i = 0; i < heads; ++i, head += pool.head_bytes()) {
      if (!list->Add(head, share) || !list->Add(head + pool.k_tile_bytes(), share)) {
        return false;
      }
    }
  }
  return true;
}

void LayerJob::StoreNewToken(const Task& task) const {
  const exchange::RowDescriptor& row = step_->rows[static_cast<size_t>(task.row)];
  const auto last = static_cast<int32_t>(row.context_tokens - 1);
  const int32_t block = step_->Table(row)[last / pool_geometry_.block_tokens];
  // The pool as if it had the task's heads only: other heads are stored by their own tasks.
  kv::PoolGeometry heads = pool_geometry_;
  heads.num_kv_heads = task.kv_head_end - task.kv_head_begin;
  const size_t row_offset = static_cast<size_t>(task.row) * kv_row_ +
                            static_cast<size_t>(task.kv_head_begin) * geometry_.head_dim;
  kv::StoreToken(heads,
                 buffers_.pool + pool_geometry_.HeadOffset(block, layer_, task.kv_head_begin),
                 last % pool_geometry_.block_tokens,
                 {buffers_.k + row_offset * element_bytes_,
                  buffers_.v + row_offset * element_bytes_, compute_dtype_});
}

void LayerJob::RunTask(const Task& task, Scratch* scratch) {
  const RowSplit& row_split = split_.rows[static_cast<size_t>(task.row)];
  const exchange::RowDescriptor& row = step_->rows[static_cast<size_t>(task.row)];
  if (task.first_token + task.num_tokens == int64_t{row.context_tokens}) {
    StoreNewToken(task);
  }
  const bool merge = row_split.num_segments > 1;
  const auto partial = static_cast<size_t>(row_split.first_partial + task.segment);
  const auto group = static_cast<int32_t>(geometry_.num_q_heads / geometry_.num_kv_heads);
  attention::SegmentArgs args;
  args.pool = buffers_.pool;
  args.block_table = step_->Table(row);
  args.layer = layer_;
  args.first_token = task.first_token;
  args.num_tokens = task.num_tokens;
  args.kv_head_begin = task.kv_head_begin;
  args.kv_head_end = task.kv_head_end;
  args.group_size = group;
  args.q = buffers_.q + static_cast<size_t>(task.row) * q_row_ * element_bytes_;
  args.q_dtype = compute_dtype_;
  args.scale = step_->scale;
  args.out = merge ? &partial_out_[partial * q_row_] : scratch->out.data();
  args.log_sum_exp =
      merge ? &partial_lse_[partial * geometry_.num_q_heads] : scratch->log_sum_exp.data();
  attend_(pool_geometry_, args);
  if (!merge) {
    WriteOutput(task.row, scratch->out.data(), task.kv_head_begin * group,
                task.kv_head_end * group);
    return;
  }
  // The one that finishes the row merges it.
  std::atomic<int32_t>& pending = pending_[static_cast<size_t>(task.row)];
  if (pending.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    FinishRow(task.row, scratch);
  }
}

void LayerJob::FinishRow(int32_t row, Scratch* scratch) {
  const RowSplit& row_split = split_.rows[static_cast<size_t>(row)];
  const auto count = static_cast<size_t>(row_split.num_segments);
  const auto first = static_cast<size_t>(row_split.first_partial);
  std::vector<const float*>& parts = scratch->parts;
  std::vector<float>& weights = scratch->weights;
  parts.resize(count);
  weights.resize(count);
  for (size_t head = 0; head < geometry_.num_q_heads; ++head) {
    for (size_t i = 0; i < count; ++i) {
      parts[i] = &partial_out_[(first + i) * q_row_ + head * geometry_.head_dim];
      weights[i] = partial_lse_[(first + i) * geometry_.num_q_heads + head];
    }
    attention::MergeSegments(parts.data(), weights.data(), row_split.num_segments,
                             static_cast<int32_t>(geometry_.head_dim),
                             &scratch->out[head * geometry_.head_dim]);
  }
  WriteOutput(row, scratch->out.data(), 0, static_cast<int32_t>(geometry_.num_q_heads));
}

void LayerJob::WriteOutput(int32_t row, const float* out, int32_t q_begin, int32_t q_end) const {
  const size_t begin = static_cast<size_t>(q_begin) * geometry_.head_dim;
  const size_t end = static_cast<size_t>(q_end) * geometry_.head_dim;
  std::byte* target = buffers_.o + static_cast<size_t>(row) * q_row_ * element_bytes_;
  store_row_(out + begin, end - begin, compute_dtype_, target + begin * element_bytes_);
}

}  // namespace tandem::cpu_attention_worker
