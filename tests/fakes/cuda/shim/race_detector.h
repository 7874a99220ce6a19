#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tandem::shim {

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// Who accesses, and how many barriers it has passed: of the block, and of its whole warp.
struct Accessor {
  uint32_t thread = 0;
  uint32_t block_syncs = 0;
  uint32_t warp_syncs = 0;
};

// Finds accesses of two threads of a block to the same two bytes of its shared memory, one of them
// a write, with no barrier between. Knows the newest write and the readers since, in one record per
// two bytes: readers of several lanes or warps are remembered as such.
class RaceDetector {
 public:
  void Reserve(size_t bytes);
  // The other thread, where there is a race.
  std::optional<uint32_t> OnAccess(size_t offset, size_t bytes, const Accessor& by, Access access);

 private:
  static constexpr uint32_t kNone = ~0u;
  static constexpr uint32_t kSeveral = ~0u - 1;
  struct Record {
    Accessor write{kNone, 0, 0};
    Accessor read{kNone, 0, 0};
    uint32_t read_warp = kNone;
    bool write_is_atomic = false;
  };

  static bool Ordered(const Accessor& before, uint32_t before_warp, const Accessor& now);
  static bool RacesWithReads(const Record& record, const Accessor& now);
  static void AddRead(Record& record, const Accessor& now);

  std::vector<Record> records_;
};

}  // namespace tandem::shim
