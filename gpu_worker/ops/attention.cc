#include "gpu_worker/ops/attention.h"

#include <algorithm>

#include "common/base/check.h"
#include "gpu_worker/ops/attention_cuda.h"
#include "gpu_worker/ops/attention_host.h"
#include "gpu_worker/ops/attention_paced.h"
#include "gpu_worker/ops/cuda.h"
#include "gpu_worker/ops/paced.h"

namespace tandem::gpu_worker::ops {
namespace {

// Large enough that neither launches nor the copies' own latency count beside the link.
constexpr uint64_t kSequenceCopyBytes = uint64_t{32} << 20;

void CheckPool(const QkvRows& qkv, const PoolLayer& pool) {
  TANDEM_CHECK(pool.geometry != nullptr && pool.pool != nullptr && qkv.data != nullptr);
  TANDEM_CHECK(pool.geometry->num_kv_heads == qkv.num_kv_heads &&
               pool.geometry->head_dim == qkv.head_dim);
  TANDEM_CHECK(pool.layer >= 0 && pool.layer < pool.geometry->num_layers);
}

void CheckRuns(std::span<const RowRun> runs, const kv::PoolGeometry& geometry) {
  for (const RowRun& run : runs) {
    const int64_t tokens = int64_t{run.start_position} + run.num_rows;
    TANDEM_CHECK(run.num_rows >= 0 && run.start_position >= 0);
    TANDEM_CHECK(static_cast<int64_t>(run.block_table.size()) * geometry.block_tokens >= tokens);
  }
}

}  // namespace

void StoreKv(OpContext& context, const QkvRows& qkv, std::span<const RowRun> runs,
             const PoolLayer& pool, DType kept_as) {
  if (runs.empty()) {
    return;
  }
  CheckPool(qkv, pool);
  CheckRuns(runs, *pool.geometry);
  if (paced::IsPaced(context)) {
    paced::StoreKv(context, qkv, runs);
    return;
  }
  if (cuda::IsCuda(context)) {
    cuda::StoreKv(context, qkv, runs, pool, kept_as);
    return;
  }
  context.stream().Launch(
      [qkv, runs, pool, kept_as] { return host::StoreKv(qkv, runs, pool, kept_as); });
}

void PrefillAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  if (runs.empty()) {
    return;
  }
  CheckPool(args.qkv, args.pool);
  CheckRuns(runs, *args.pool.geometry);
  if (paced::IsPaced(context)) {
    paced::PrefillAttention(context, args, runs);
    return;
  }
  if (cuda::IsCuda(context)) {
    cuda::PrefillAttention(context, args, runs);
    return;
  }
  context.stream().Launch(
      [&context, args, runs] { return host::PrefillAttention(context, args, runs); });
}

void DecodeAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  if (runs.empty()) {
    return;
  }
  CheckPool(args.qkv, args.pool);
  CheckRuns(runs, *args.pool.geometry);
  if (paced::IsPaced(context)) {
    paced::DecodeAttention(context, args, runs);
    return;
  }
  if (cuda::IsCuda(context)) {
    cuda::DecodeAttention(context, args, runs);
    return;
  }
  context.stream().Launch(
      [&context, args, runs] { return host::DecodeAttention(context, args, runs); });
}

absl::Status PrepareDecodes(OpContext& context, int32_t num_q_heads, int32_t head_dim) {
  return cuda::IsCuda(context) ? cuda::PrepareDecodes(context, num_q_heads, head_dim)
                               : absl::OkStatus();
}

void CopyKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args) {
  if (args.count > 0 && paced::IsPaced(context)) {
    paced::CopyKv(context, stream, args);
  } else if (args.count > 0 && cuda::IsCuda(context)) {
    cuda::CopyKv(context, stream, args);
  } else if (args.count > 0) {
    stream.Launch([args] { return host::CopyKv(args); });
  }
}

void CopySequenceKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args) {
  TANDEM_CHECK(args.from.layer == 0 && args.to.layer == 0 && args.first == 0);
  if (args.count > 0 && cuda::IsCuda(context)) {
    cuda::CopySequenceKv(context, stream, args);
    return;
  }
  CopyKvArgs layer = args;
  for (; layer.from.layer < args.from.geometry->num_layers; ++layer.from.layer, ++layer.to.layer) {
    CopyKv(context, stream, layer);
  }
}

absl::Status PrepareSequenceCopies(OpContext& context, const kv::PoolGeometry& host) {
  return cuda::IsCuda(context) ? context.cuda().PrepareSequenceCopies(SequenceCopyBytes(host))
                               : absl::OkStatus();
}

uint64_t SequenceCopyBytes(const kv::PoolGeometry& host) {
  return 2 * std::max(kSequenceCopyBytes, uint64_t{host.block_bytes()});
}

}  // namespace tandem::gpu_worker::ops
