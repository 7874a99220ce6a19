#include "gpu_worker/ops/rows_cuda.h"

#include "gpu_worker/ops/cuda.h"

namespace tandem::gpu_worker::ops::cuda {

void Embed(OpContext& context, const EmbedArgs& args) {
  device::CudaStream& stream = AsCuda(context.stream());
  EmbedParams params;
  params.table = args.table;
  params.ids = context.cuda().tables(stream).Ids(stream, args.ids);
  params.out = args.out;
  params.rows = static_cast<int32_t>(args.ids.size());
  params.width = static_cast<int32_t>(args.width);
  stream.Fail(cuda::Embed(context.cuda().launcher(), stream.handle(),
                          ElementTypeOf(context.compute_dtype()), params));
}

void RmsNorm(OpContext& context, const RmsNormArgs& args) {
  device::CudaStream& stream = AsCuda(context.stream());
  RmsNormParams params;
  params.in = args.in;
  params.weight = args.weight;
  if (args.row_ids != nullptr) {
    params.row_ids = context.cuda().tables(stream).Ids(
        stream, std::span(args.row_ids, static_cast<size_t>(args.rows)));
  }
  params.out = args.out;
  params.eps = args.eps;
  params.rows = static_cast<int32_t>(args.rows);
  params.width = static_cast<int32_t>(args.width);
  stream.Fail(cuda::RmsNorm(context.cuda().launcher(), stream.handle(),
                            ElementTypeOf(context.compute_dtype()), params));
}

void Rope(OpContext& context, const RopeArgs& args) {
  device::CudaStream& stream = AsCuda(context.stream());
  RopeParams params;
  params.qkv = args.qkv;
  params.positions = context.cuda().tables(stream).Ids(stream, args.positions);
  params.cos = args.cos;
  params.sin = args.sin;
  params.q_norm = args.q_norm;
  params.k_norm = args.k_norm;
  params.eps = args.eps;
  params.rows = static_cast<int32_t>(args.positions.size());
  params.num_q_heads = args.num_q_heads;
  params.num_kv_heads = args.num_kv_heads;
  params.head_dim = args.head_dim;
  stream.Fail(cuda::Rope(context.cuda().launcher(), stream.handle(), params));
}

void SiluMul(OpContext& context, const SiluMulArgs& args) {
  device::CudaStream& stream = AsCuda(context.stream());
  SiluMulParams params;
  params.gate_up = args.gate_up;
  params.out = args.out;
  params.rows = static_cast<int32_t>(args.rows);
  params.width = static_cast<int32_t>(args.width);
  stream.Fail(cuda::SiluMul(context.cuda().launcher(), stream.handle(),
                            ElementTypeOf(context.compute_dtype()), params));
}

}  // namespace tandem::gpu_worker::ops::cuda
