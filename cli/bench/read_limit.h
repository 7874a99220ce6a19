#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::cli {

// Seconds that `threads` threads need to read `bytes` once, streaming, each its own share.
double StreamingReadSeconds(const std::byte* data, uint64_t bytes, int threads);

}  // namespace tandem::cli
