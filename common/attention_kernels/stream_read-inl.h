#pragma once

// Loops that read memory and do next to nothing with it; included by the files of isa/ so that the
// widest loads of each instruction set are used.

#include "common/attention_kernels/isa/isa_kernels.h"

namespace tandem::attention {
namespace {

constexpr size_t kLineBytes = 64;
constexpr int kLinesPerTurn = 8;

// kStreams equal parts are read in turns, so that that many of the CPU's prefetch streams run at
// once; kAhead bytes ahead each line is asked for in advance, into the second-level cache (0: not).
template <int kStreams, int kAhead>
uint64_t StreamRead(const std::byte* data, size_t bytes) {
  using Line = unsigned long long __attribute__((vector_size(64), aligned(1), may_alias));
  Line sums[kLinesPerTurn] = {};
  const size_t part = bytes / kStreams;
  for (size_t offset = 0; offset < part; offset += kLinesPerTurn * kLineBytes) {
#pragma GCC unroll 8
    for (int stream = 0; stream < kStreams; ++stream) {
      const std::byte* from = data + static_cast<size_t>(stream) * part + offset;
#pragma GCC unroll 8
      for (int i = 0; i < kLinesPerTurn; ++i) {
        const std::byte* line = from + static_cast<size_t>(i) * kLineBytes;
        if constexpr (kAhead > 0) {
          __builtin_prefetch(line + kAhead, 0, 2);
        }
        sums[i] += *reinterpret_cast<const Line*>(line);
      }
    }
  }
  uint64_t total = 0;
  for (const Line& sum : sums) {
    for (int i = 0; i < 8; ++i) {
      total += sum[i];
    }
  }
  return total;
}

constexpr StreamReadForm kStreamReadForms[] = {{"1 stream", StreamRead<1, 0>},
                                               {"4 streams", StreamRead<4, 0>},
                                               {"8 streams", StreamRead<8, 0>},
                                               {"1 stream, prefetch", StreamRead<1, 2048>},
                                               {"4 streams, prefetch", StreamRead<4, 2048>}};

}  // namespace
}  // namespace tandem::attention
