#pragma once

#include "gpu_worker/ops/attention.h"

namespace tandem::gpu_worker::ops::cuda {

void StoreKv(OpContext& context, const QkvRows& qkv, std::span<const RowRun> runs,
             const PoolLayer& pool, DType kept_as);
void PrefillAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs);
void DecodeAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs);
absl::Status PrepareDecodes(OpContext& context, int32_t num_q_heads, int32_t head_dim);
void CopyKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args);
void CopySequenceKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args);

}  // namespace tandem::gpu_worker::ops::cuda
