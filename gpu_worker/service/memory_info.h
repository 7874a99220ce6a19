#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace tandem::gpu_worker {

// Of this machine, or of the control group that limits us.
struct MemoryInfo {
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
};

absl::StatusOr<MemoryInfo> ReadMemoryInfo();

// The parts of it, on the text of the kernel's files. `limit` and `used` are memory.max and
// memory.current of cgroup v2, empty where there are none.
absl::StatusOr<MemoryInfo> ParseMemoryInfo(std::string_view meminfo, std::string_view limit,
                                           std::string_view used);

}  // namespace tandem::gpu_worker
