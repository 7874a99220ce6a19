#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/attention_kernels/stream_read.h"

namespace tandem::cli {

// The memory's streaming read limit: threads, pinned like the CPU attention worker's, read one
// contiguous share each with the widest loads. Which form of loop is fastest depends on the CPU:
// all are tried first, and the best is what is measured then, so that no kernel on the same pages
// can be faster but by chance.
class ReadLimit {
 public:
  // `cpus`: one thread each. Tries the forms over `bytes` at `data`, at least 1 MiB for each
  // thread.
  ReadLimit(attention::Isa isa, std::vector<int> cpus, const std::byte* data, uint64_t bytes);

  // Seconds that reading all of it takes once.
  double Seconds() const;
  const char* form() const { return form_.name; }

 private:
  const std::vector<int> cpus_;
  const std::byte* const data_;
  const uint64_t bytes_;
  attention::StreamReadForm form_{};
};

}  // namespace tandem::cli
