#pragma once

#include <cstdint>
#include <span>

#include "common/kv_layout/kv_layout.h"
#include "gpu_worker/ops/op.h"

// Attention over paged KV pools on the device, and stores to them.
namespace tandem::gpu_worker::ops {

// One layer of a paged pool.
struct PoolLayer {
  const kv::PoolGeometry* geometry = nullptr;
  std::byte* pool = nullptr;
  int32_t layer = 0;
  int32_t first_head = 0;  // of copies to and from a pool that holds some of the heads
};

// Rows of Q, K and V [rows, (num_q_heads + 2 * num_kv_heads) * head_dim] float32.
struct QkvRows {
  const float* data = nullptr;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t stride() const { return int64_t{num_q_heads + 2 * num_kv_heads} * head_dim; }
  const float* q(int64_t row) const { return data + row * stride(); }
  const float* k(int64_t row) const { return q(row) + int64_t{num_q_heads} * head_dim; }
  const float* v(int64_t row) const { return k(row) + int64_t{num_kv_heads} * head_dim; }
};

// Rows [first_row, first_row + num_rows) of one sequence: positions start_position and on, whose KV
// lives in `block_table`. Runs without rows, which come last, change nothing.
struct RowRun {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t start_position = 0;
  std::span<const int32_t> block_table;
};

// Stores K and V of the runs' rows, in the pool's dtype; before that they are rounded to what a
// pool of `kept_as` keeps of them, which is where they go later. Idempotent.
void StoreKv(OpContext& context, const QkvRows& qkv, std::span<const RowRun> runs,
             const PoolLayer& pool, DType kept_as = DType::kFloat32);

struct AttentionArgs {
  QkvRows qkv;
  PoolLayer pool;
  float scale = 1.0f;
  std::byte* out = nullptr;  // [rows, num_q_heads * head_dim] compute dtype
};

// Causal attention of each run's rows to everything its block table holds up to the row's own
// position, which StoreKv stored before.
void PrefillAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs);

// The same for runs of one row, split into segments over the device's threads.
void DecodeAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs);
// Makes what DecodeAttention of such heads works with, so that it makes nothing itself: it may be
// captured. Waits for the device.
absl::Status PrepareDecodes(OpContext& context, int32_t num_q_heads, int32_t head_dim);

// KV of tokens [first, first + count) of one sequence, one layer, from a pool to another.
struct CopyKvArgs {
  PoolLayer from;
  std::span<const int32_t> from_table;
  PoolLayer to;
  std::span<const int32_t> to_table;
  int64_t first = 0;
  int64_t count = 0;
  // Shares the copy out over the compute stream's threads; only for work of that stream.
  bool use_team = true;
  // Which side lies in the host's memory. On a device without memory of its own, what it would
  // write there is all that is written.
  bool from_host = false;
  bool to_host = false;
};
void CopyKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args);

// The same of all layers (`layer` of both pools and `first` are 0): the move of a sequence. A
// device with memory of its own packs whole blocks of the host's pool into a staging area, one for
// each direction, so that block by block one copy goes over the link; unused tokens of the last
// block go along. Where others have heads in those blocks, too, a kernel reads or writes the host's
// memory.
void CopySequenceKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args);
// Makes those areas, of device memory, for such a pool of the host's or one with fewer heads.
absl::Status PrepareSequenceCopies(OpContext& context, const kv::PoolGeometry& host);
uint64_t SequenceCopyBytes(const kv::PoolGeometry& host);

}  // namespace tandem::gpu_worker::ops
