#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace tandem::shm {

// Makes the pages of a shared mapping exist without changing what they hold; safe beside other
// writers. `data` is page-aligned. ResourceExhausted when there is no memory for them.
absl::Status PopulatePages(std::byte* data, uint64_t bytes);

// Asks the kernel to back [data, data + bytes) with 2 MiB pages; whole aligned huge pages only.
// Works on a touched memfd even where the shmem_enabled setting is "never". Best effort.
absl::Status CollapseToHugePages(std::byte* data, uint64_t bytes);

// Bytes of the mapping that holds `data` which 2 MiB pages back (ShmemPmdMapped of
// /proc/self/smaps); 0 when that cannot be read.
uint64_t HugePageBytes(const std::byte* data);

}  // namespace tandem::shm
