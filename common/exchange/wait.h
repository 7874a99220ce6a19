#pragma once

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace tandem::exchange {

// How a thread waits for a word that another process changes: spin, then yield, then park on a
// futex. Plain value.
struct WaitPolicy {
  int32_t spins = 0;   // checks with a pause between
  int32_t yields = 0;  // checks with a yield between
  // Longest park before the condition is checked again. Bounds what a lost wake can cost: a waiter
  // may look for more than the word it parks on, and a device without wakes sends none.
  int64_t park_us = 5'000;

  // The other side needs this core: park at once.
  static WaitPolicy SharedCores() { return {0, 0, 5'000}; }
  // About 20 us of spinning covers a device's layer; then get out of the way step by step.
  static WaitPolicy OwnCores() { return {4'000, 64, 1'000}; }
  // The other side cannot wake: short naps instead of parks.
  WaitPolicy WithoutWakes() const {
    WaitPolicy policy = *this;
    policy.park_us = 50;
    return policy;
  }
};

// Until `ready` (called often; reads shared words with acquire order) or the deadline of
// base::SystemClock; returns whether it became ready. `word` is what the other side changes and
// wakes.
bool WaitUntil(const std::atomic<uint32_t>& word, absl::FunctionRef<bool()> ready,
               int64_t deadline_us, const WaitPolicy& policy);

// Shared (between processes) futex operations.
void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_us);
void FutexWakeAll(std::atomic<uint32_t>& word);

}  // namespace tandem::exchange
