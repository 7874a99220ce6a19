#include "gpu_worker/ops/exchange_rows_paced.h"

#include "gpu_worker/ops/paced.h"
#include "gpu_worker/ops/pseudo_values.h"

namespace tandem::gpu_worker::ops::paced {
namespace {

void WriteRows(const OpContext& context, const SendRowsArgs& args) {
  const int64_t q_size = QueryWidth(*args.exchange);
  const int64_t kv_size = KvWidth(*args.exchange);
  const int64_t element = DTypeBytes(context.compute_dtype());
  const PseudoRows& rows = context.pseudo_rows();
  uint64_t index = static_cast<uint64_t>(args.layer) << 32;
  for (size_t i = 0; i < args.row_ids.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    rows.Write(index++, q_size, args.exchange->q(args.slot) + row * q_size * element);
    rows.Write(index++, kv_size, args.exchange->k(args.slot) + row * kv_size * element);
    rows.Write(index++, kv_size, args.exchange->v(args.slot) + row * kv_size * element);
  }
}

double RowsUs(const OpContext& context, size_t rows, int64_t width) {
  return LinkUs(ProfileOf(context), static_cast<double>(rows) * static_cast<double>(width) *
                                        DTypeBytes(context.compute_dtype()));
}

}  // namespace

void SendRows(OpContext& context, device::Stream& stream, const SendRowsArgs& args) {
  device::PacedStream& paced_stream = AsPaced(stream);
  // Nobody reads the slot between the join of the layer before and this bell.
  paced_stream.LaunchAhead([&context, args] {
    WriteRows(context, args);
    return absl::OkStatus();
  });
  paced_stream.Charge(RowsUs(context, args.row_ids.size(),
                             QueryWidth(*args.exchange) + 2 * KvWidth(*args.exchange)));
  paced_stream.Launch([args] {
    args.exchange->Post(args.slot, args.layer);
    return absl::OkStatus();
  });
}

void JoinRows(OpContext& context, device::Stream& stream, const JoinRowsArgs& args) {
  device::PacedStream& paced_stream = AsPaced(stream);
  paced_stream.LaunchAhead([args] { return WaitForRows(args); });
  paced_stream.Charge(RowsUs(context, args.row_ids.size(), QueryWidth(*args.exchange)));
}

}  // namespace tandem::gpu_worker::ops::paced
