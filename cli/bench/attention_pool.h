#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv_layout/kv_layout.h"

namespace tandem::cli {

// Fills a pool of `blocks` blocks with finite values of magnitude below 2, and scales that keep
// them so.
void FillPool(const kv::PoolGeometry& geometry, int64_t blocks, std::byte* pool);

}  // namespace tandem::cli
