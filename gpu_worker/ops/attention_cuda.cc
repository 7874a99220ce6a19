#include "gpu_worker/ops/attention_cuda.h"

#include <algorithm>
#include <vector>

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

namespace {

absl::StatusOr<std::span<float>> Scratch(OpContext& context, int32_t num_q_heads,
                                         int32_t head_dim) {
  OpState& state = context.cuda();
  return state.DecodeScratch(AsCuda(context.stream()),
                             DecodeScratchFloats(state.launcher().traits(), num_q_heads, head_dim));
}

}  // namespace

absl::Status PrepareDecodes(OpContext& context, int32_t num_q_heads, int32_t head_dim) {
  return Scratch(context, num_q_heads, head_dim).status();
}

void DecodeAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs) {
  device::CudaStream& stream = AsCuda(context.stream());
  OpState& state = context.cuda();
  const absl::StatusOr<std::span<float>> scratch =
      Scratch(context, args.qkv.num_q_heads, args.qkv.head_dim);
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

namespace {

// Of the layers that both pools name.
CopyKvParams ParamsOf(OpContext& context, device::CudaStream& stream, const CopyKvArgs& args) {
  StepTables& tables = context.cuda().tables(stream);
  CopyKvParams params;
  params.from = ParamsOf(args.from);
  params.to = ParamsOf(args.to);
  params.from_table = tables.Ids(stream, args.from_table);
  params.to_table = tables.Ids(stream, args.to_table);
  params.from_first_head = args.from.first_head;
  params.to_first_head = args.to.first_head;
  params.num_heads = std::min(args.from.geometry->num_kv_heads - args.from.first_head,
                              args.to.geometry->num_kv_heads - args.to.first_head);
  params.first = static_cast<int32_t>(args.first);
  params.count = static_cast<int32_t>(args.count);
  params.from_layer_bytes = static_cast<int64_t>(args.from.geometry->layer_bytes());
  params.to_layer_bytes = static_cast<int64_t>(args.to.geometry->layer_bytes());
  return params;
}

// Whole blocks between the staging area, where they stand side by side, and the host's pool; blocks
// that are neighbours there go as one.
void CopyBlocks(device::CudaStream& stream, const PoolLayer& host, std::span<const int32_t> blocks,
                std::byte* staging, bool to_host) {
  const size_t block_bytes = host.geometry->block_bytes();
  for (size_t begin = 0; begin < blocks.size();) {
    size_t end = begin + 1;
    while (end < blocks.size() && blocks[end] == blocks[end - 1] + 1) {
      ++end;
    }
    std::byte* there = host.pool + static_cast<size_t>(blocks[begin]) * block_bytes;
    std::byte* here = staging + begin * block_bytes;
    const size_t bytes = (end - begin) * block_bytes;
    if (to_host) {
      stream.CopyToHost(there, here, bytes);
    } else {
      stream.CopyFromHost(here, there, bytes);
    }
    begin = end;
  }
}

}  // namespace

void CopyKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args) {
  device::CudaStream& cuda_stream = AsCuda(stream);
  cuda_stream.Fail(cuda::CopyKv(context.cuda().launcher(), cuda_stream.handle(),
                                ParamsOf(context, cuda_stream, args)));
}

// Pieces of as many of the host's blocks as the area holds, one behind the other. Whole blocks
// would take other devices' heads along.
void CopySequenceKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args) {
  device::CudaStream& cuda_stream = AsCuda(stream);
  const PoolLayer& host = args.to_host ? args.to : args.from;
  const std::span<const int32_t> host_table = args.to_host ? args.to_table : args.from_table;
  CopyKvParams params = ParamsOf(context, cuda_stream, args);
  params.num_layers = args.from.geometry->num_layers;
  if (params.num_heads < host.geometry->num_kv_heads) {
    cuda_stream.Fail(cuda::CopyKv(context.cuda().launcher(), cuda_stream.handle(), params));
    return;
  }
  const std::span<std::byte> area = context.cuda().SequenceCopies(args.to_host);
  const auto blocks_at_a_time = static_cast<int64_t>(area.size() / host.geometry->block_bytes());
  // Block b of the sequence stands at b modulo blocks_at_a_time.
  std::vector<int32_t> places(host_table.size());
  for (size_t i = 0; i < places.size(); ++i) {
    places[i] = static_cast<int32_t>(static_cast<int64_t>(i) % blocks_at_a_time);
  }
  const auto* places_there = reinterpret_cast<const int32_t*>(
      cuda_stream.Upload(places.data(), places.size() * sizeof(int32_t)));
  (args.to_host ? params.to_table : params.from_table) = places_there;
  (args.to_host ? params.to : params.from).data = reinterpret_cast<char*>(area.data());
  const int64_t piece = blocks_at_a_time * host.geometry->block_tokens;
  const int64_t num_blocks =
      (args.count + host.geometry->block_tokens - 1) / host.geometry->block_tokens;
  for (int64_t block = 0; block < num_blocks; block += blocks_at_a_time) {
    const int64_t begin = block * host.geometry->block_tokens;
    params.first = static_cast<int32_t>(begin);
    params.count = static_cast<int32_t>(std::min(piece, args.count - begin));
    const auto blocks =
        host_table.subspan(static_cast<size_t>(block),
                           static_cast<size_t>(std::min(blocks_at_a_time, num_blocks - block)));
    if (!args.to_host) {
      CopyBlocks(cuda_stream, host, blocks, area.data(), false);
    }
    cuda_stream.Fail(cuda::CopyKv(context.cuda().launcher(), cuda_stream.handle(), params));
    if (args.to_host) {
      CopyBlocks(cuda_stream, host, blocks, area.data(), true);
    }
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
