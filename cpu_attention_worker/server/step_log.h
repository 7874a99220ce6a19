#pragma once

#include <string>

#include "common/exchange/step_descriptor.h"

namespace tandem::cpu_attention_worker {

// The rows of a step's slots for a log line, so that a request can be followed into this process:
// "a:17 chatcmpl-1 (300), a:18 - (1), b:19 ..." (slot, sequence, request, context tokens). At most
// `max_rows` of them; how many more there are stands at the end. `slots` points to both.
std::string DescribeRows(const exchange::StepSlot* const slots[exchange::kNumSlots],
                         size_t max_rows);

}  // namespace tandem::cpu_attention_worker
