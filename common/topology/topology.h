#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/topology/placement.h"

namespace tandem::topology {

// A machine's topology as hwloc sees it. Thread-safe after loading. hwloc is used here only.
class Topology {
 public:
  // This machine, restricted to the CPUs of the process's affinity mask (containers).
  static absl::StatusOr<std::unique_ptr<Topology>> Load();
  // A made-up machine in hwloc's notation, e.g. "numa:2 core:4 pu:2"; for tests.
  static absl::StatusOr<std::unique_ptr<Topology>> LoadSynthetic(const std::string& description);
  virtual ~Topology() = default;

  virtual const Snapshot& snapshot() const = 0;
  // Binds the pages of [data, data + bytes) to a node's memory, also those not touched yet. Fails
  // where a container profile forbids it; that costs speed, not correctness.
  virtual absl::Status BindMemory(void* data, size_t bytes, int numa_node) const = 0;
  // Whether the page at `data` lies in the memory of `numa_node`; nothing where the page does not
  // exist or the kernel does not tell (containers, made-up topologies).
  virtual std::optional<bool> PageIsOnNode(const void* data, int numa_node) const = 0;
};

// Pins the calling thread to one CPU, or lets it run on any of several.
absl::Status PinThisThread(int cpu);
absl::Status RestrictThisThread(const std::vector<int>& cpus);

}  // namespace tandem::topology
