#include "gpu_worker/ops/exchange_rows_host.h"

#include <cstring>

#include "common/base/status_macros.h"
#include "gpu_worker/ops/rows.h"

namespace tandem::gpu_worker::ops::host {

absl::Status SendRows(const OpContext& context, const SendRowsArgs& args) {
  const QkvRows& qkv = args.qkv;
  const int64_t q_size = int64_t{qkv.num_q_heads} * qkv.head_dim;
  const int64_t kv_size = int64_t{qkv.num_kv_heads} * qkv.head_dim;
  const int64_t first_kv = int64_t{args.first_kv_head} * qkv.head_dim;
  PackRowsArgs pack;
  pack.in = qkv.data;
  pack.in_width = qkv.stride();
  pack.row_ids = args.row_ids;
  pack.first_column = first_kv * (qkv.num_q_heads / qkv.num_kv_heads);
  pack.width = QueryWidth(*args.exchange);
  pack.out = args.exchange->q(args.slot);
  ops::PackRows(context, pack);
  pack.first_column = q_size + first_kv;
  pack.width = KvWidth(*args.exchange);
  pack.out = args.exchange->k(args.slot);
  ops::PackRows(context, pack);
  pack.first_column = q_size + kv_size + first_kv;
  pack.out = args.exchange->v(args.slot);
  ops::PackRows(context, pack);
  args.exchange->Post(args.slot, args.layer);
  return absl::OkStatus();
}

absl::Status JoinRows(const OpContext& context, const JoinRowsArgs& args) {
  TANDEM_RETURN_IF_ERROR(WaitForRows(args));
  const auto element = static_cast<size_t>(DTypeBytes(context.compute_dtype()));
  const size_t row_bytes = static_cast<size_t>(args.width) * element;
  const size_t part_bytes = static_cast<size_t>(QueryWidth(*args.exchange)) * element;
  std::byte* out = args.out + static_cast<size_t>(args.first_column) * element;
  const std::byte* from = args.exchange->o(args.slot);
  for (size_t i = 0; i < args.row_ids.size(); ++i) {
    std::memcpy(out + static_cast<size_t>(args.row_ids[i]) * row_bytes, from + i * part_bytes,
                part_bytes);
  }
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker::ops::host
