#include "gpu_worker/ops/attention_paced.h"

#include "gpu_worker/ops/paced.h"
#include "gpu_worker/ops/pseudo_values.h"

namespace tandem::gpu_worker::ops::paced {
namespace {

double TokenBytes(const kv::PoolGeometry& geometry) {
  return static_cast<double>(geometry.token_bytes());
}

// Multiply and add of a query with a key and of a weight with a value.
double FlopsPerPair(const QkvRows& qkv) { return 4.0 * qkv.num_q_heads * qkv.head_dim; }

}  // namespace

void StoreKv(OpContext& context, const QkvRows& qkv, std::span<const RowRun> runs) {
  double rows = 0;
  for (const RowRun& run : runs) {
    rows += run.num_rows;
  }
  ChargeElementwise(context, 2.0 * rows * 2.0 * qkv.num_kv_heads * qkv.head_dim);
}

void PrefillAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  for (const RowRun& run : runs) {
    const double rows = run.num_rows;
    const double pairs = rows * (run.start_position + (rows + 1) / 2);
    const double bytes = (run.start_position + rows) * TokenBytes(*args.pool.geometry);
    ChargeKernel(context, PrefillAttentionUs(ProfileOf(context), pairs * FlopsPerPair(args.qkv),
                                             bytes, context.compute_dtype()));
  }
}

void DecodeAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  double tokens = 0;
  for (const RowRun& run : runs) {
    tokens += run.start_position + 1;
  }
  ChargeKernel(context,
               DecodeAttentionUs(ProfileOf(context), tokens * TokenBytes(*args.pool.geometry)));
}

void CopyKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args) {
  device::PacedStream& paced_stream = AsPaced(stream);
  const auto tokens = static_cast<double>(args.count);
  if (!args.from_host && !args.to_host) {
    paced_stream.Charge(
        ElementwiseUs(ProfileOf(context), 2.0 * tokens * TokenBytes(*args.from.geometry)));
    return;
  }
  const kv::PoolGeometry& host = args.to_host ? *args.to.geometry : *args.from.geometry;
  const double link_us = LinkUs(ProfileOf(context), tokens * TokenBytes(host));
  if (args.from_host) {
    paced_stream.Charge(link_us);
    return;
  }
  const PseudoKv& values = context.pseudo_kv(host);
  paced_stream.LaunchFor(link_us, [&values, args] {
    const kv::PagedLayer to{args.to.geometry, args.to.pool, args.to_table, args.to.layer};
    values.Write(to, args.first, args.count);
    return absl::OkStatus();
  });
}

}  // namespace tandem::gpu_worker::ops::paced
