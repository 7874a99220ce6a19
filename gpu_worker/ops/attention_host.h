#pragma once

#include "gpu_worker/ops/attention.h"

namespace tandem::gpu_worker::ops::host {

absl::Status StoreKv(const QkvRows& qkv, std::span<const RowRun> runs, const PoolLayer& pool,
                     DType kept_as);
absl::Status PrefillAttention(OpContext& context, const AttentionArgs& args,
                              std::span<const RowRun> runs);
absl::Status DecodeAttention(OpContext& context, const AttentionArgs& args,
                             std::span<const RowRun> runs);
absl::Status CopyKv(const CopyKvArgs& args);

}  // namespace tandem::gpu_worker::ops::host
