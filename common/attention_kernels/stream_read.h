#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/attention_kernels/paged_decode.h"

namespace tandem::attention {

// Reads [data, data + bytes) once, `bytes` a multiple of kStreamReadGrain, and returns a sum of it.
// What benchmarks measure as the memory's speed.
using StreamReadFn = uint64_t (*)(const std::byte* data, size_t bytes);
inline constexpr size_t kStreamReadGrain = 64 << 10;

struct StreamReadForm {
  const char* name;
  StreamReadFn read;
};

// Loops of different forms: which is fastest depends on the CPU's prefetchers. `isa` must be
// supported here.
std::span<const StreamReadForm> StreamReadForms(Isa isa);

}  // namespace tandem::attention
