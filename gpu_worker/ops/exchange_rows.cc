#include "gpu_worker/ops/exchange_rows.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "gpu_worker/ops/cuda.h"
#include "gpu_worker/ops/exchange_rows_cuda.h"
#include "gpu_worker/ops/exchange_rows_host.h"
#include "gpu_worker/ops/exchange_rows_paced.h"
#include "gpu_worker/ops/paced.h"

namespace tandem::gpu_worker::ops {

void SendRows(OpContext& context, device::Stream& stream, const SendRowsArgs& args) {
  TANDEM_CHECK(args.exchange != nullptr && args.qkv.data != nullptr);
  if (paced::IsPaced(context)) {
    paced::SendRows(context, stream, args);
  } else if (cuda::IsCuda(context)) {
    cuda::SendRows(context, stream, args);
  } else {
    TANDEM_CHECK(args.window.num_kv_heads == 0);
    stream.Launch([&context, args] { return host::SendRows(context, args); });
  }
}

void JoinRows(OpContext& context, device::Stream& stream, const JoinRowsArgs& args) {
  TANDEM_CHECK(args.exchange != nullptr && args.out != nullptr && args.width > 0);
  if (paced::IsPaced(context)) {
    paced::JoinRows(context, stream, args);
  } else if (cuda::IsCuda(context)) {
    cuda::JoinRows(context, stream, args);
  } else {
    TANDEM_CHECK(args.window.num_kv_heads == 0);
    stream.Launch([&context, args] { return host::JoinRows(context, args); });
  }
}

void WatchJoins(OpContext& context, device::Stream& stream, const JoinRowsArgs& args) {
  // Other devices' joins wait on a thread of the host, which sees for itself.
  if (cuda::IsCuda(context)) {
    cuda::WatchJoins(context, stream, args);
  }
}

int64_t QueryWidth(const exchange::DeviceSide& exchange) {
  const exchange::Geometry& geometry = exchange.header().geometry;
  return int64_t{geometry.num_q_heads} * geometry.head_dim;
}

int64_t KvWidth(const exchange::DeviceSide& exchange) {
  const exchange::Geometry& geometry = exchange.header().geometry;
  return int64_t{geometry.num_kv_heads} * geometry.head_dim;
}

int64_t QueryWidth(const exchange::DeviceSide& exchange, const ExchangeWindow& window) {
  const exchange::Geometry& geometry = exchange.header().geometry;
  return KvWidth(exchange, window) * (geometry.num_q_heads / geometry.num_kv_heads);
}

int64_t KvWidth(const exchange::DeviceSide& exchange, const ExchangeWindow& window) {
  return window.num_kv_heads == 0
             ? KvWidth(exchange)
             : int64_t{window.num_kv_heads} * exchange.header().geometry.head_dim;
}

absl::Status WaitForRows(const JoinRowsArgs& args) {
  switch (args.exchange->WaitDone(args.slot, args.layer, args.timeout_us)) {
    case exchange::WaitResult::kDone:
      return absl::OkStatus();
    case exchange::WaitResult::kReleased:
      return absl::UnavailableError("the CPU attention worker was lost during the step");
    case exchange::WaitResult::kTimedOut:
      break;
  }
  return absl::UnavailableError(absl::StrCat("the CPU attention worker did not answer layer ",
                                             args.layer, " within ", args.timeout_us, " us"));
}

}  // namespace tandem::gpu_worker::ops
