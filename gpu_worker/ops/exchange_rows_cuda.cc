#include "gpu_worker/ops/exchange_rows_cuda.h"

#include "absl/strings/str_cat.h"
#include "gpu_worker/ops/cuda.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

void Signal(OpContext& context, device::CudaStream& stream, uint32_t* word, uint32_t value) {
  if (!stream.WriteWord(word, value)) {
    stream.Fail(SignalWord(context.cuda().launcher(), stream.handle(), {word, value}));
  }
}

void Await(OpContext& context, device::CudaStream& stream, uint32_t* word, uint32_t value) {
  if (!stream.WaitWord(word, value)) {
    stream.Fail(WaitWord(context.cuda().launcher(), stream.handle(), {word, value}));
  }
}

// Once the stream is idle: whether what was waited for is the worker's answer.
absl::Status CheckJoined(JoinWatch& watch, const JoinRowsArgs& args) {
  if (watch.End(args.exchange)) {
    return absl::UnavailableError(
        absl::StrCat("the CPU attention worker did not answer within ", args.timeout_us, " us"));
  }
  JoinRowsArgs now = args;
  now.timeout_us = 0;
  return WaitForRows(now);
}

}  // namespace

void SendRows(OpContext& context, device::Stream& stream, const SendRowsArgs& args) {
  device::CudaStream& cuda_stream = AsCuda(stream);
  const QkvRows& qkv = args.qkv;
  const int32_t q_size = qkv.num_q_heads * qkv.head_dim;
  const int32_t kv_size = qkv.num_kv_heads * qkv.head_dim;
  const int32_t first_kv = args.first_kv_head * qkv.head_dim;
  const int64_t group = qkv.num_q_heads / qkv.num_kv_heads;
  const int64_t skipped = int64_t{args.window.first_kv_head} * qkv.head_dim *
                          DTypeBytes(context.compute_dtype());  // bytes of a K row
  SendRowsParams params;
  params.qkv = qkv.data;
  params.row_ids = context.cuda().tables(stream).Ids(cuda_stream, args.row_ids);
  params.q = args.exchange->q(args.slot) + skipped * group;
  params.k = args.exchange->k(args.slot) + skipped;
  params.v = args.exchange->v(args.slot) + skipped;
  params.num_rows = static_cast<int32_t>(args.row_ids.size());
  params.stride = static_cast<int32_t>(qkv.stride());
  params.q_column = first_kv * (qkv.num_q_heads / qkv.num_kv_heads);
  params.k_column = q_size + first_kv;
  params.v_column = q_size + kv_size + first_kv;
  params.q_width = static_cast<int32_t>(QueryWidth(*args.exchange, args.window));
  params.kv_width = static_cast<int32_t>(KvWidth(*args.exchange, args.window));
  params.q_stride = static_cast<int32_t>(QueryWidth(*args.exchange));
  params.kv_stride = static_cast<int32_t>(KvWidth(*args.exchange));
  cuda_stream.Fail(cuda::SendRows(context.cuda().launcher(), cuda_stream.handle(),
                                  ElementTypeOf(context.compute_dtype()), params));
  Signal(context, cuda_stream, PostedWord(*args.exchange, args.slot, args.window.poster),
         static_cast<uint32_t>(args.layer) + 1);
}

void JoinRows(OpContext& context, device::Stream& stream, const JoinRowsArgs& args) {
  device::CudaStream& cuda_stream = AsCuda(stream);
  Await(context, cuda_stream, DoneWord(*args.exchange, args.slot),
        static_cast<uint32_t>(args.layer) + 1);
  const exchange::Geometry& geometry = args.exchange->header().geometry;
  const int64_t skipped = int64_t{args.window.first_kv_head} *
                          (geometry.num_q_heads / geometry.num_kv_heads) * geometry.head_dim;
  JoinRowsParams params;
  params.from = args.exchange->o(args.slot) + skipped * DTypeBytes(context.compute_dtype());
  params.row_ids = context.cuda().tables(stream).Ids(cuda_stream, args.row_ids);
  params.out = args.out;
  params.num_rows = static_cast<int32_t>(args.row_ids.size());
  params.from_width = static_cast<int32_t>(QueryWidth(*args.exchange, args.window));
  params.from_stride = static_cast<int32_t>(QueryWidth(*args.exchange));
  params.out_width = static_cast<int32_t>(args.width);
  params.first_column = static_cast<int32_t>(args.first_column);
  cuda_stream.Fail(cuda::JoinRows(context.cuda().launcher(), cuda_stream.handle(),
                                  ElementTypeOf(context.compute_dtype()), params));
}

void WatchJoins(OpContext& context, device::Stream& stream, const JoinRowsArgs& args) {
  JoinWatch& watch = context.cuda().joins();
  watch.Begin(args.exchange, args.timeout_us);
  AsCuda(stream).CheckAfterwards([&watch, args] { return CheckJoined(watch, args); });
}

}  // namespace tandem::gpu_worker::ops::cuda
