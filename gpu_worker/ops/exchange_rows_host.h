#pragma once

#include "gpu_worker/ops/exchange_rows.h"

namespace tandem::gpu_worker::ops::host {

absl::Status SendRows(const OpContext& context, const SendRowsArgs& args);
absl::Status JoinRows(const OpContext& context, const JoinRowsArgs& args);

}  // namespace tandem::gpu_worker::ops::host
