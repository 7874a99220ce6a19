#pragma once

#include "gpu_worker/ops/attention.h"

namespace tandem::gpu_worker::ops::paced {

void StoreKv(OpContext& context, const QkvRows& qkv, std::span<const RowRun> runs);
void PrefillAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs);
void DecodeAttention(OpContext& context, const AttentionArgs& args, std::span<const RowRun> runs);
// Takes the link's time. Bytes for the host's memory are written, so that who attends to them reads
// real ones.
void CopyKv(OpContext& context, device::Stream& stream, const CopyKvArgs& args);

}  // namespace tandem::gpu_worker::ops::paced
