#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace tandem::shm {

// Makes the pages of a shared mapping exist without changing what they hold; safe beside other
// writers. `data` is page-aligned. ResourceExhausted when there is no memory for them.
absl::Status PopulatePages(std::byte* data, uint64_t bytes);

// One 4 KiB page of each whole aligned huge page, which is what the kernel needs before it makes a
// huge page of the place; it fills the rest with zeros then, which takes a tenth of the time of
// touching every page first. Errors as of PopulatePages.
absl::Status PopulateSparsely(std::byte* data, uint64_t bytes);

// Asks the kernel to back [data, data + bytes) with 2 MiB pages; whole aligned huge pages only.
// Each must have a page already. Works on a memfd even where the shmem_enabled setting is "never".
// Best effort: Unimplemented where the kernel cannot do it at all, Unavailable where it could not
// now.
absl::Status CollapseToHugePages(std::byte* data, uint64_t bytes);

// Keeps the pages in memory until they are unmapped. ResourceExhausted where the process may not
// lock that much.
absl::Status LockPages(std::byte* data, uint64_t bytes);

// Bytes of the mappings that overlap [data, data + bytes) which 2 MiB pages back, collapsed or
// reserved ones (ShmemPmdMapped and *_Hugetlb of /proc/self/smaps); 0 when that cannot be read.
uint64_t HugePageBytes(const std::byte* data, uint64_t bytes = 1);

}  // namespace tandem::shm
