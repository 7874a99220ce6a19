#include "gpu_worker/kv/kv_invariants.h"

#include <span>
#include <string>

#include "common/base/status_macros.h"

namespace tandem::gpu_worker {
namespace {

absl::Status Broken(const char* pool, int32_t block, const std::string& what) {
  return absl::InternalError(std::string(pool) + " block " + std::to_string(block) + ": " + what);
}

// Counts how often each block of one pool is spoken for, and compares with its recorded owner.
class PoolCheck {
 public:
  PoolCheck(const char* name, const PoolSnapshot& pool)
      : name_(name), pool_(pool), claims_(pool.owners.size(), 0) {}

  absl::Status Claim(std::span<const int32_t> blocks, uint64_t owner) {
    for (const int32_t block : blocks) {
      if (block < 0 || block >= pool_.usable_blocks) {
        return Broken(name_, block, "outside the usable part");
      }
      const auto index = static_cast<size_t>(block);
      if (claims_[index]++ > 0) {
        return Broken(name_, block, "claimed twice, now by " + std::to_string(owner));
      }
      if (pool_.owners[index] != owner) {
        return Broken(name_, block,
                      "recorded owner " + std::to_string(pool_.owners[index]) + ", found with " +
                          std::to_string(owner));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Finish() const {
    for (size_t block = 0; block < claims_.size(); ++block) {
      const bool is_usable = block < static_cast<size_t>(pool_.usable_blocks);
      if (claims_[block] != (is_usable ? 1 : 0)) {
        return Broken(name_, static_cast<int32_t>(block), "neither free nor in a table");
      }
      if (!is_usable && pool_.owners[block] != BlockPool::kFree) {
        return Broken(name_, static_cast<int32_t>(block), "owned before it is usable");
      }
    }
    return absl::OkStatus();
  }

 private:
  const char* name_;
  const PoolSnapshot& pool_;
  std::vector<int> claims_;
};

}  // namespace

absl::Status CheckKvInvariants(const KvSnapshot& snapshot) {
  PoolCheck gpu("gpu", snapshot.gpu);
  PoolCheck cpu("cpu", snapshot.cpu);
  TANDEM_RETURN_IF_ERROR(gpu.Claim(snapshot.gpu.free_list, BlockPool::kFree));
  TANDEM_RETURN_IF_ERROR(cpu.Claim(snapshot.cpu.free_list, BlockPool::kFree));
  for (const TableSnapshot& entry : snapshot.tables) {
    if (entry.tier == Tier::kNone || entry.table.empty()) {
      return absl::InternalError("sequence " + std::to_string(entry.sequence_id) +
                                 " has a table without a pool or blocks");
    }
    const bool is_gpu = entry.tier == Tier::kGpu;
    TANDEM_RETURN_IF_ERROR((is_gpu ? gpu : cpu).Claim(entry.table, entry.sequence_id));
    TANDEM_RETURN_IF_ERROR((is_gpu ? cpu : gpu).Claim(entry.destination, entry.sequence_id));
  }
  TANDEM_RETURN_IF_ERROR(gpu.Finish());
  return cpu.Finish();
}

}  // namespace tandem::gpu_worker
