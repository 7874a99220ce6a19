#include "gpu_worker/ops/attention.h"

#include "common/base/check.h"
#include "gpu_worker/ops/attention_cuda.h"
#include "gpu_worker/ops/attention_host.h"
#include "gpu_worker/ops/attention_paced.h"
#include "gpu_worker/ops/cuda.h"
#include "gpu_worker/ops/paced.h"

namespace tandem::gpu_worker::ops {
namespace {

void CheckPool(const QkvRows& qkv, const PoolLayer& pool) {
  TANDEM_CHECK(pool.geometry != nullptr && pool.pool != nullptr && qkv.data != nullptr);
  TANDEM_CHECK(pool.geometry->num_kv_heads == qkv.num_kv_heads &&
               pool.geometry->head_dim == qkv.head_dim);
  TANDEM_CHECK(pool.layer >= 0 && pool.layer < pool.geometry->num_layers);
}

void CheckRuns(std::span<const RowRun> runs, const kv::PoolGeometry& geometry) {
  for (const RowRun& run : runs) {
    const int64_t tokens = int64_t{run.start_position} + run.num_rows;
    TANDEM_CHECK(run.num_rows > 0 && run.start_position >= 0);
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

void CopyKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args) {
  if (args.count > 0 && paced::IsPaced(context)) {
    paced::CopyKv(context, stream, args);
  } else if (args.count > 0 && cuda::IsCuda(context)) {
    cuda::CopyKv(context, stream, args);
  } else if (args.count > 0) {
    stream.Launch([args] { return host::CopyKv(args); });
  }
}

}  // namespace tandem::gpu_worker::ops
