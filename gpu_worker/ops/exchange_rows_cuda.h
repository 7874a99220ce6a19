#pragma once

#include "gpu_worker/ops/exchange_rows.h"

namespace tandem::gpu_worker::ops::cuda {

// No host thread takes part: a kernel writes the rows to the region, and the bells are operations
// of the stream.
void SendRows(OpContext& context, device::Stream& stream, const SendRowsArgs& args);
void JoinRows(OpContext& context, device::Stream& stream, const JoinRowsArgs& args);
void WatchJoins(OpContext& context, device::Stream& stream, const JoinRowsArgs& args);

}  // namespace tandem::gpu_worker::ops::cuda
