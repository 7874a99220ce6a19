#include "common/topology/topology.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::topology {
namespace {

struct BitmapDeleter {
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, BitmapDeleter>;

// The CPUs of the calling process's affinity mask; everything when it cannot be read.
Bitmap AllowedCpus() {
  Bitmap allowed(hwloc_bitmap_alloc());
  // Larger than any machine's mask; the kernel fills what it has.
  constexpr size_t kCpus = 8192;
  cpu_set_t* set = CPU_ALLOC(kCpus);
  const size_t bytes = CPU_ALLOC_SIZE(kCpus);
  CPU_ZERO_S(bytes, set);
  if (set == nullptr || sched_getaffinity(0, bytes, set) != 0) {
    hwloc_bitmap_fill(allowed.get());
  } else {
    for (size_t cpu = 0; cpu < kCpus; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set)) {
        hwloc_bitmap_set(allowed.get(), static_cast<unsigned>(cpu));
      }
    }
  }
  CPU_FREE(set);
  return allowed;
}

Core CoreOf(hwloc_topology_t topology, hwloc_obj_t core, const hwloc_bitmap_s* allowed) {
  Core result;
  hwloc_obj_t pu = nullptr;
  while ((pu = hwloc_get_next_obj_inside_cpuset_by_type(topology, core->cpuset, HWLOC_OBJ_PU,
                                                        pu)) != nullptr) {
    if (hwloc_bitmap_isset(allowed, pu->os_index) != 0) {
      result.cpus.push_back(static_cast<int>(pu->os_index));
    }
  }
  return result;
}

Node NodeOf(hwloc_topology_t topology, hwloc_obj_t object, const hwloc_bitmap_s* allowed) {
  Node node;
  node.index = static_cast<int>(object->os_index);
  node.memory_bytes = object->attr->numanode.local_memory;
  const bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  // A virtual machine may show no cores: then each logical CPU counts as one.
  const hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_inside_cpuset_by_type(topology, object->cpuset, type, core)) !=
         nullptr) {
    Core found = CoreOf(topology, core, allowed);
    if (!found.cpus.empty()) {
      node.cores.push_back(std::move(found));
    }
  }
  return node;
}

// Of the outermost level that there is, what the CPUs in `allowed` share.
int64_t LastLevelCacheBytes(hwloc_topology_t topology, const hwloc_bitmap_s* allowed) {
  for (const hwloc_obj_type_t type : {HWLOC_OBJ_L5CACHE, HWLOC_OBJ_L4CACHE, HWLOC_OBJ_L3CACHE,
                                      HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L1CACHE}) {
    int64_t bytes = 0;
    hwloc_obj_t cache = nullptr;
    while ((cache = hwloc_get_next_obj_by_type(topology, type, cache)) != nullptr) {
      if (hwloc_bitmap_intersects(cache->cpuset, allowed) != 0) {
        bytes += static_cast<int64_t>(cache->attr->cache.size);
      }
    }
    if (bytes > 0) {
      return bytes;
    }
  }
  return 0;
}

class HwlocTopology : public Topology {
 public:
  explicit HwlocTopology(hwloc_topology_t topology) : topology_(topology) {}
  ~HwlocTopology() override { hwloc_topology_destroy(topology_); }

  void TakeSnapshot(const hwloc_bitmap_s* allowed) {
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_NUMANODE, object)) !=
           nullptr) {
      Node node = NodeOf(topology_, object, allowed);
      if (!node.cores.empty()) {
        snapshot_.nodes.push_back(std::move(node));
      }
    }
    snapshot_.last_level_cache_bytes = LastLevelCacheBytes(topology_, allowed);
  }

  const Snapshot& snapshot() const override { return snapshot_; }

  absl::Status BindMemory(void* data, size_t bytes, int numa_node) const override {
    Bitmap nodes(hwloc_bitmap_alloc());
    hwloc_bitmap_only(nodes.get(), static_cast<unsigned>(numa_node));
    if (hwloc_set_area_membind(topology_, data, bytes, nodes.get(), HWLOC_MEMBIND_BIND,
                               HWLOC_MEMBIND_BYNODESET) != 0) {
      return absl::ErrnoToStatus(errno, absl::StrCat("binding memory to NUMA node ", numa_node));
    }
    return absl::OkStatus();
  }

  std::optional<bool> PageIsOnNode(const void* data, int numa_node) const override {
    Bitmap nodes(hwloc_bitmap_alloc());
    if (hwloc_get_area_memlocation(topology_, data, 1, nodes.get(), HWLOC_MEMBIND_BYNODESET) != 0 ||
        hwloc_bitmap_iszero(nodes.get()) != 0) {
      return std::nullopt;
    }
    return hwloc_bitmap_isset(nodes.get(), static_cast<unsigned>(numa_node)) != 0;
  }

 private:
  hwloc_topology_t topology_;
  Snapshot snapshot_;
};

absl::StatusOr<std::unique_ptr<Topology>> LoadFrom(const std::string* synthetic,
                                                   const hwloc_bitmap_s* allowed) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    return absl::InternalError("hwloc_topology_init failed");
  }
  auto topology = std::make_unique<HwlocTopology>(raw);
  if (synthetic != nullptr && hwloc_topology_set_synthetic(raw, synthetic->c_str()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("not a synthetic topology: ", *synthetic));
  }
  if (hwloc_topology_load(raw) != 0) {
    return absl::InternalError(
        absl::StrCat("hwloc cannot read this machine's topology: ", std::strerror(errno)));
  }
  topology->TakeSnapshot(allowed);
  return topology;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Topology>> Topology::Load() {
  const Bitmap allowed = AllowedCpus();
  return LoadFrom(nullptr, allowed.get());
}

absl::StatusOr<std::unique_ptr<Topology>> Topology::LoadSynthetic(const std::string& description) {
  const Bitmap all(hwloc_bitmap_alloc_full());
  return LoadFrom(&description, all.get());
}

absl::Status PinThisThread(int cpu) { return RestrictThisThread({cpu}); }

absl::Status RestrictThisThread(const std::vector<int>& cpus) {
  const int most = *std::max_element(cpus.begin(), cpus.end());
  cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(most) + 1);
  const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(most) + 1);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) {
    CPU_SET_S(static_cast<size_t>(cpu), bytes, set);
  }
  const int error = pthread_setaffinity_np(pthread_self(), bytes, set);
  CPU_FREE(set);
  if (error != 0) {
    return absl::ErrnoToStatus(error,
                               absl::StrCat("pinning a thread to CPUs ", absl::StrJoin(cpus, ",")));
  }
  return absl::OkStatus();
}

}  // namespace tandem::topology
