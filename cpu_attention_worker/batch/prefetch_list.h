#pragma once

#include <cstddef>
#include <vector>

namespace tandem::cpu_attention_worker {

// Memory that its owner will read soon, to be asked for bit by bit while it has nothing else to do.
// Addresses only: what is gone meanwhile does no harm. One thread.
class alignas(64) PrefetchList {
 public:
  // Nothing is ever asked for with a budget of 0.
  explicit PrefetchList(size_t max_bytes) : max_bytes_(max_bytes) {}

  void Clear() {
    ranges_.clear();
    next_ = 0;
    offset_ = 0;
    bytes_ = 0;
  }
  // Takes what fits the budget; false: it is used up.
  bool Add(const std::byte* begin, size_t bytes) {
    const size_t room = ranges_.size() < kMaxRanges ? max_bytes_ - bytes_ : 0;
    const size_t taken = bytes < room ? bytes : room;
    if (taken > 0) {
      ranges_.push_back({begin, taken});
      bytes_ += taken;
    }
    return taken == bytes;
  }
  // Asks for the next kilobyte; false: nothing was left.
  bool Step() {
    if (next_ == ranges_.size()) {
      return false;
    }
    const Range& range = ranges_[next_];
    const size_t end = offset_ + kStepBytes < range.bytes ? offset_ + kStepBytes : range.bytes;
    for (; offset_ < end; offset_ += kLineBytes) {
      __builtin_prefetch(range.begin + offset_, /*write=*/0, /*into the second level:*/ 2);
    }
    if (offset_ >= range.bytes) {
      ++next_;
      offset_ = 0;
    }
    return true;
  }
  size_t bytes() const { return bytes_; }

 private:
  struct Range {
    const std::byte* begin = nullptr;
    size_t bytes = 0;
  };
  static constexpr size_t kLineBytes = 64;
  static constexpr size_t kStepBytes = 1024;
  static constexpr size_t kMaxRanges = 256;

  const size_t max_bytes_;
  std::vector<Range> ranges_;
  size_t next_ = 0;
  size_t offset_ = 0;  // in ranges_[next_]
  size_t bytes_ = 0;
};

}  // namespace tandem::cpu_attention_worker
