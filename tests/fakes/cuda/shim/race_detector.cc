#include "tests/fakes/cuda/shim/race_detector.h"

#include <algorithm>

namespace tandem::shim {
namespace {

constexpr size_t kGranuleBytes = 4;
constexpr uint32_t kWarpThreads = 32;

}  // namespace

void RaceDetector::Reserve(size_t bytes) {
  const size_t wanted = (bytes + kGranuleBytes - 1) / kGranuleBytes;
  records_.resize(std::max(records_.size(), wanted));
}

bool RaceDetector::Ordered(const Accessor& before, uint32_t before_warp, const Accessor& now) {
  if (before.block_syncs != now.block_syncs) {
    return true;
  }
  return before_warp == now.thread / kWarpThreads && before.warp_syncs < now.warp_syncs;
}

bool RaceDetector::RacesWithReads(const Record& record, const Accessor& now) {
  const Accessor& read = record.read;
  if (read.thread == kNone || read.thread == now.thread) {
    return false;
  }
  return !Ordered(read, record.read_warp, now);
}

void RaceDetector::AddRead(Record& record, const Accessor& now) {
  Accessor& read = record.read;
  const uint32_t warp = now.thread / kWarpThreads;
  if (read.thread == kNone || read.block_syncs != now.block_syncs) {
    read = now;
    record.read_warp = warp;
    return;
  }
  read.thread = read.thread == now.thread ? now.thread : kSeveral;
  record.read_warp = record.read_warp == warp ? warp : kSeveral;
  read.warp_syncs = std::max(read.warp_syncs, now.warp_syncs);
}

std::optional<uint32_t> RaceDetector::OnAccess(size_t offset, size_t bytes, const Accessor& by,
                                               Access access) {
  std::optional<uint32_t> other;
  const size_t end = (offset + bytes + kGranuleBytes - 1) / kGranuleBytes;
  for (size_t i = offset / kGranuleBytes; i < end && i < records_.size(); ++i) {
    Record& record = records_[i];
    const Accessor& write = record.write;
    const bool both_atomic = record.write_is_atomic && access == Access::kAtomic;
    if (write.thread != kNone && write.thread != by.thread && !both_atomic &&
        !Ordered(write, write.thread / kWarpThreads, by)) {
      other = write.thread;
    }
    if (access == Access::kRead) {
      AddRead(record, by);
      continue;
    }
    if (RacesWithReads(record, by)) {
      other = record.read.thread;
    }
    record.write = by;
    record.write_is_atomic = access == Access::kAtomic;
    record.read.thread = kNone;
  }
  return other;
}

}  // namespace tandem::shim
