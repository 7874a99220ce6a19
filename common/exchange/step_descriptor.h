#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/exchange/layout.h"

namespace tandem::exchange {

// A slot's descriptor, copied out of the region and checked: nothing in it can lead outside the
// pool any more.
struct StepSlot {
  std::vector<RowDescriptor> rows;
  std::vector<int32_t> tables;  // block ids; row.table_begin indexes it
  float scale = 0.0f;

  const int32_t* Table(const RowDescriptor& row) const { return tables.data() + row.table_begin; }
};

// Copies `slot` of step `epoch` out of the region at `base`, then checks the copy (the peer may
// change the original at any time). `header` was validated for a mapping of that size. The vectors
// of `out` are reused. InvalidArgument names slot, row and field. Pure but for reading the region.
absl::Status ReadSlot(const RegionHeader& header, const std::byte* base, int slot, uint64_t epoch,
                      StepSlot* out);

}  // namespace tandem::exchange
