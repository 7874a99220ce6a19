#pragma once

#include "gpu_worker/ops/exchange_rows.h"

namespace tandem::gpu_worker::ops::paced {

// Rows of the right size, and the bell once the link has had its time for them.
void SendRows(OpContext& context, device::Stream& stream, const SendRowsArgs& args);
// Waits for the worker; the outputs take the link's time and are not read.
void JoinRows(OpContext& context, device::Stream& stream, const JoinRowsArgs& args);

}  // namespace tandem::gpu_worker::ops::paced
