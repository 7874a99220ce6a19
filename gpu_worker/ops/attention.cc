#include "gpu_worker/ops/attention.h"

#include "common/base/check.h"
#include "gpu_worker/ops/attention_host.h"

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
             const PoolLayer& pool) {
  if (runs.empty()) {
    return;
  }
  CheckPool(qkv, pool);
  CheckRuns(runs, *pool.geometry);
  context.stream().Launch([qkv, runs, pool] { return host::StoreKv(qkv, runs, pool); });
}

void PrefillAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  if (runs.empty()) {
    return;
  }
  CheckPool(args.qkv, args.pool);
  CheckRuns(runs, *args.pool.geometry);
  context.stream().Launch(
      [&context, args, runs] { return host::PrefillAttention(context, args, runs); });
}

void DecodeAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  if (runs.empty()) {
    return;
  }
  CheckPool(args.qkv, args.pool);
  CheckRuns(runs, *args.pool.geometry);
  context.stream().Launch(
      [&context, args, runs] { return host::DecodeAttention(context, args, runs); });
}

void CopyKv(device::Stream& stream, const CopyKvArgs& args) {
  if (args.count > 0) {
    stream.Launch([args] { return host::CopyKv(args); });
  }
}

}  // namespace tandem::gpu_worker::ops
