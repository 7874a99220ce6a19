#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::topology {

// A machine as far as placement needs it: NUMA nodes, their physical cores, the logical CPUs of
// each core that this process may run on. Cores and nodes without an allowed CPU are left out.
// Plain value.
struct Core {
  std::vector<int> cpus;  // operating system numbers, first thread of the core first
};
struct Node {
  int index = 0;  // operating system number
  uint64_t memory_bytes = 0;
  std::vector<Core> cores;
};
struct Snapshot {
  std::vector<Node> nodes;
  int64_t last_level_cache_bytes = 0;  // of all usable cores together; 0: not known
};

struct PlacementRequest {
  std::optional<int> numa_node;    // none: choose
  std::optional<int64_t> threads;  // none: one per core of the node
};

struct Placement {
  int numa_node = 0;
  std::vector<int> cpus;  // one per thread: thread i is pinned to cpus[i]
  std::string reason;     // for logs and Describe
};

// Where to run attention threads. Physical cores come first, second threads of a core only when
// more threads are asked for than there are cores: a memory-bound loop gains nothing from them. The
// node chosen by itself is the one with the most allowed cores, then the most memory, then the
// lowest number. InvalidArgument names the flag and what is allowed. Pure.
absl::StatusOr<Placement> ChoosePlacement(const Snapshot& snapshot,
                                          const PlacementRequest& request);

}  // namespace tandem::topology
