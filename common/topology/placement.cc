#include "common/topology/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::topology {
namespace {

size_t CpuCount(const Node& node) {
  size_t count = 0;
  for (const Core& core : node.cores) {
    count += core.cpus.size();
  }
  return count;
}

bool Better(const Node& a, const Node& b) {
  if (a.cores.size() != b.cores.size()) {
    return a.cores.size() > b.cores.size();
  }
  if (a.memory_bytes != b.memory_bytes) {
    return a.memory_bytes > b.memory_bytes;
  }
  return a.index < b.index;
}

absl::StatusOr<const Node*> ChooseNode(const Snapshot& snapshot, const PlacementRequest& request) {
  const Node* best = nullptr;
  std::vector<int> indices;
  for (const Node& node : snapshot.nodes) {
    if (node.cores.empty()) {
      continue;
    }
    indices.push_back(node.index);
    const bool wanted = !request.numa_node.has_value() || *request.numa_node == node.index;
    if (wanted && (best == nullptr || Better(node, *best))) {
      best = &node;
    }
  }
  if (best != nullptr) {
    return best;
  }
  if (indices.empty()) {
    return absl::FailedPreconditionError("no CPU of this machine may be used by this process");
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--numa-node ", *request.numa_node,
      " has no CPU that this process may use; allowed: ", absl::StrJoin(indices, ", ")));
}

// Round i takes the i-th thread of every core.
std::vector<int> CpusInOrder(const Node& node) {
  std::vector<int> cpus;
  for (size_t round = 0; cpus.size() < CpuCount(node); ++round) {
    for (const Core& core : node.cores) {
      if (round < core.cpus.size()) {
        cpus.push_back(core.cpus[round]);
      }
    }
  }
  return cpus;
}

}  // namespace

absl::StatusOr<Placement> ChoosePlacement(const Snapshot& snapshot,
                                          const PlacementRequest& request) {
  absl::StatusOr<const Node*> node = ChooseNode(snapshot, request);
  if (!node.ok()) {
    return node.status();
  }
  Placement placement;
  placement.numa_node = (*node)->index;
  placement.cpus = CpusInOrder(**node);
  const auto available = static_cast<int64_t>(placement.cpus.size());
  const int64_t threads = request.threads.value_or(static_cast<int64_t>((*node)->cores.size()));
  if (threads < 1 || threads > available) {
    return absl::InvalidArgumentError(absl::StrCat("--cpu-attention-threads ", threads,
                                                   "; allowed on NUMA node ", placement.numa_node,
                                                   ": 1 to ", available));
  }
  placement.cpus.resize(static_cast<size_t>(threads));
  placement.reason = absl::StrCat(
      request.numa_node.has_value() ? "node asked for" : "node with the most usable cores", " (",
      snapshot.nodes.size(), " nodes, ", (*node)->cores.size(), " cores and ", available,
      " CPUs of it usable), ",
      request.threads.has_value() ? "threads asked for" : "one thread per core", ": CPUs ",
      absl::StrJoin(placement.cpus, ","));
  return placement;
}

}  // namespace tandem::topology
