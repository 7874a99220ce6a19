#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/attention_kernels/paged_decode.h"
#include "common/exchange/worker_side.h"
#include "cpu_attention_worker/batch/prefetch_list.h"
#include "cpu_attention_worker/batch/split.h"

namespace tandem::cpu_attention_worker {

// Where one slot of the exchange lies in this process.
struct SlotBuffers {
  const std::byte* q = nullptr;  // [rows, num_q_heads, head_dim] compute dtype
  const std::byte* k = nullptr;  // [rows, num_kv_heads, head_dim]
  const std::byte* v = nullptr;
  std::byte* o = nullptr;  // [rows, num_q_heads, head_dim]
  std::byte* pool = nullptr;
};

// One slot's part of one step: prepared once per step, then run once per layer by all members of
// a team. Stores the new token's K and V, attends, merges and writes O rows.
class LayerJob {
 public:
  LayerJob(const exchange::Geometry& geometry, attention::AttendSegmentFn attend, int num_threads);

  // `step` must stay unchanged until the step is over.
  void Prepare(const exchange::StepSlot& step, const SlotBuffers& buffers);
  // Before each layer, by one thread.
  void BeginLayer(int32_t layer);
  // By every member; returns when no task is left to start. `leave` is asked between tasks: true
  // abandons the layer.
  void Work(int member, const std::function<bool()>& leave);

  // Puts what members [first_member, end_member) will read of the prepared step's `layer` at the
  // end of `list`, in the order of their tasks, as far as its budget goes.
  void ListReads(int32_t layer, int first_member, int end_member, PrefetchList* list) const;

  // K and V bytes that one layer reads, scales included.
  uint64_t layer_read_bytes() const { return layer_read_bytes_; }

 private:
  // Per member: results of rows that need no merge.
  struct Scratch {
    std::vector<float> out;
    std::vector<float> log_sum_exp;
    std::vector<const float*> parts;  // of a row that is merged; kept for their memory
    std::vector<float> weights;
  };
  struct alignas(64) Counter {
    std::atomic<int32_t> value{0};
  };

  int32_t NextTask(int member);
  bool ListTask(const Task& task, int32_t layer, PrefetchList* list) const;
  void RunTask(const Task& task, Scratch* scratch);
  void StoreNewToken(const Task& task) const;
  void FinishRow(int32_t row, Scratch* scratch);
  void WriteOutput(int32_t row, const float* out, int32_t q_begin, int32_t q_end) const;

  const exchange::Geometry geometry_;
  const kv::PoolGeometry pool_geometry_;
  const attention::AttendSegmentFn attend_;
  const attention::StoreRowFn store_row_;
  const int num_threads_;
  const DType compute_dtype_;
  const size_t q_row_;   // elements
  const size_t kv_row_;  // elements
  const size_t element_bytes_;

  const exchange::StepSlot* step_ = nullptr;
  SlotBuffers buffers_;
  Split split_;
  int32_t layer_ = 0;
  uint64_t layer_read_bytes_ = 0;
  std::vector<int64_t> context_tokens_;
  std::vector<Scratch> scratch_;
  std::vector<float> partial_out_;                   // [partials, num_q_heads, head_dim]
  std::vector<float> partial_lse_;                   // [partials, num_q_heads]
  std::unique_ptr<Counter[]> next_task_;             // per member
  std::unique_ptr<std::atomic<int32_t>[]> pending_;  // tasks left, per row that needs a merge
  size_t pending_capacity_ = 0;
};

}  // namespace tandem::cpu_attention_worker
