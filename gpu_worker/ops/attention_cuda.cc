#include "gpu_worker/ops/attention_cuda.h"

#include <algorithm>

#include "gpu_worker/ops/cuda.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

PoolParams ParamsOf(const PoolLayer& layer) {
  const kv::PoolGeometry& geometry = *layer.geometry;
  PoolParams params;
  params.data = reinterpret_cast<char*>(layer.pool + geometry.LayerOffset(0, layer.layer));
  params.block_bytes = static_cast<int64_t>(geometry.block_bytes());
  params.head_bytes = static_cast<int64_t>(geometry.head_bytes());
  params.k_tile_bytes = static_cast<int64_t>(geometry.k_tile_bytes());
  params.scales_offset = geometry.has_scales() ? static_cast<int64_t>(geometry.scales_offset()) : 0;
  params.num_kv_heads = geometry.num_kv_heads;
  params.head_dim = geometry.head_dim;
  params.block_tokens = geometry.block_tokens;
  params.dtype = ElementTypeOf(geometry.dtype);
  return params;
}

QkvParams ParamsOf(const QkvRows& qkv) {
  return {qkv.data, qkv.num_q_heads, qkv.num_kv_heads, qkv.head_dim};
}

AttentionParams ParamsOf(OpContext& context, device::CudaStream& stream, const AttentionArgs& args,
                         std::span<const RowRun> runs) {
  AttentionParams params;
  params.qkv = ParamsOf(args.qkv);
  params.runs = context.cuda().tables(stream).Runs(stream, runs);
  params.pool = ParamsOf(args.pool);
  params.scale = args.scale;
  params.out = args.out;
  return params;
}

}  // namespace

void StoreKv(OpContext& context, const QkvRows& qkv, std::span<const RowRun> runs,
             const PoolLayer& pool, DType kept_as) {
  device::CudaStream& stream = AsCuda(context.stream());
  StoreKvParams params;
  params.qkv = ParamsOf(qkv);
  params.runs = context.cuda().tables(stream).Runs(stream, runs);
  params.pool = ParamsOf(pool);
  params.kept_as = kept_as == pool.geometry->dtype ? ElementType::kFloat32 : ElementTypeOf(kept_as);
  stream.Fail(cuda::StoreKv(context.cuda().launcher(), stream.handle(), params));
}

void PrefillAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  device::CudaStream& stream = AsCuda(context.stream());
  stream.Fail(cuda::PrefillAttention(context.cuda().launcher(), stream.handle(),
                                     ElementTypeOf(context.compute_dtype()),
                                     ParamsOf(context, stream, args, runs)));
}

void DecodeAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  device::CudaStream& stream = AsCuda(context.stream());
  OpState& state = context.cuda();
  const int64_t floats =
      DecodeScratchFloats(state.launcher().traits(), static_cast<int32_t>(runs.size()),
                          args.qkv.num_q_heads, args.qkv.head_dim);
  const absl::StatusOr<std::span<float>> scratch = state.DecodeScratch(stream, floats);
  if (!scratch.ok()) {
    stream.Fail(scratch.status());
    return;
  }
  AttentionParams params = ParamsOf(context, stream, args, runs);
  params.scratch = scratch->data();
  params.scratch_floats = static_cast<int64_t>(scratch->size());
  stream.Fail(cuda::DecodeAttention(state.launcher(), stream.handle(),
                                    ElementTypeOf(context.compute_dtype()), params));
}

void CopyKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args) {
  device::CudaStream& cuda_stream = AsCuda(stream);
  StepTables& tables = context.cuda().tables(stream);
  CopyKvParams params;
  params.from = ParamsOf(args.from);
  params.to = ParamsOf(args.to);
  params.from_table = tables.Ids(cuda_stream, args.from_table);
  params.to_table = tables.Ids(cuda_stream, args.to_table);
  params.from_first_head = args.from.first_head;
  params.to_first_head = args.to.first_head;
  params.num_heads = std::min(args.from.geometry->num_kv_heads - args.from.first_head,
                              args.to.geometry->num_kv_heads - args.to.first_head);
  params.first = static_cast<int32_t>(args.first);
  params.count = static_cast<int32_t>(args.count);
  cuda_stream.Fail(cuda::CopyKv(context.cuda().launcher(), cuda_stream.handle(), params));
}

}  // namespace tandem::gpu_worker::ops::cuda
