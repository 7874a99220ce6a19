#include "cpu_attention_worker/kv_store/pool_toucher.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/shm/residency.h"

namespace tandem::cpu_attention_worker {
namespace {

// Below everything that serves requests: touching costs up to 1 s of a core per GiB.
constexpr int kNice = 10;
// Between looks at the stop flag.
constexpr uint64_t kStepBytes = uint64_t{16} << 20;
constexpr uint64_t kHugePage = uint64_t{2} << 20;

}  // namespace

PoolToucher::PoolToucher(Options options, Callbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      try_collapse_(options_.collapse) {}

void PoolToucher::Start() {
  thread_ = std::thread([this] { Run(); });
}

PoolToucher::~PoolToucher() { Stop(); }

void PoolToucher::Stop() {
  stop_.store(true);
  if (thread_.joinable()) {
    thread_.join();
  }
}

void PoolToucher::WarnOnce(bool* warned, const std::string& message) {
  if (!*warned) {
    *warned = true;
    callbacks_.on_warning(message);
  }
}

void PoolToucher::BindExtent(std::byte* data, uint64_t bytes) {
  if (options_.topology == nullptr) {
    return;
  }
  const absl::Status bound = options_.topology->BindMemory(data, bytes, options_.numa_node);
  if (!bound.ok()) {
    memory_bound_.store(false);
    WarnOnce(&warned_binding_,
             absl::StrCat("the pool's memory is not bound to its NUMA node: ", bound.message()));
  }
}

void PoolToucher::MakeHuge(std::byte* data, uint64_t bytes) {
  if (!try_collapse_ || !shm::PopulateSparsely(data, bytes).ok()) {
    return;  // what has no memory fails again when every page is touched
  }
  if (const absl::Status status = shm::CollapseToHugePages(data, bytes); !status.ok()) {
    try_collapse_ = !absl::IsUnimplemented(status);
    WarnOnce(&warned_collapse_,
             absl::StrCat("the pool is not on 2 MiB pages everywhere: ", status.message()));
  }
}

void PoolToucher::Lock(std::byte* data, uint64_t bytes) {
  if (!lock_refusal_.empty()) {
    return;
  }
  if (const absl::Status status = shm::LockPages(data, bytes); !status.ok()) {
    lock_refusal_ = std::string(status.message());
  } else {
    locked_bytes_.fetch_add(bytes);
  }
}

void PoolToucher::CheckPlacement(const std::byte* data, uint64_t bytes) {
  if (options_.topology == nullptr) {
    return;
  }
  for (uint64_t offset = 0; offset < bytes; offset += kHugePage) {
    const std::optional<bool> on_node =
        options_.topology->PageIsOnNode(data + offset, options_.numa_node);
    if (!on_node.value_or(true)) {
      misplaced_bytes_.fetch_add(std::min(kHugePage, bytes - offset));
    }
  }
}

bool PoolToucher::TouchExtent(std::byte* data, uint64_t bytes) {
  BindExtent(data, bytes);
  for (uint64_t offset = 0; offset < bytes && !stop_.load(); offset += kStepBytes) {
    const uint64_t step = std::min(kStepBytes, bytes - offset);
    MakeHuge(data + offset, step);
    if (absl::Status status = shm::PopulatePages(data + offset, step); !status.ok()) {
      callbacks_.on_warning(std::string(status.message()));
      return false;
    }
    CheckPlacement(data + offset, step);
    Lock(data + offset, step);
  }
  return true;
}

void PoolToucher::Run() {
  pthread_setname_np(pthread_self(), "touch-pool");
  // On Linux this is the priority of the calling thread alone. Failing costs nothing but
  // politeness.
  setpriority(PRIO_PROCESS, 0, kNice);
  if (!options_.cpus.empty()) {
    const absl::Status pinned = topology::RestrictThisThread(options_.cpus);
    if (!pinned.ok()) {
      callbacks_.on_warning(std::string(pinned.message()));
    }
  }
  uint32_t count = 0;
  for (uint64_t begin = 0; begin < options_.pool_bytes; begin += options_.extent_bytes) {
    const uint64_t bytes = std::min(options_.extent_bytes, options_.pool_bytes - begin);
    if (!TouchExtent(options_.pool + begin, bytes)) {
      break;
    }
    if (stop_.load()) {
      return;
    }
    callbacks_.on_extents_ready(++count);
  }
  finished_.store(true);
}

std::string PageKind(const std::byte* pool, uint64_t pool_bytes) {
  const uint64_t huge = std::min(shm::HugePageBytes(pool, pool_bytes), pool_bytes);
  const uint64_t percent = pool_bytes == 0 ? 0 : huge * 100 / pool_bytes;
  if (percent >= 99) {
    return "2MiB";
  }
  return percent == 0 ? "4KiB" : absl::StrCat(percent, "% 2MiB");
}

}  // namespace tandem::cpu_attention_worker
