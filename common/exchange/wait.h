#pragma once

#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"

namespace tandem::exchange {

// How a thread waits for a word that another thread or process changes: spin, then yield, then park
// on a futex. Plain value.
struct WaitPolicy {
  int32_t spins = 0;     // checks with a pause between
  int64_t yield_us = 0;  // then checks with a yield between, for this long
  // Longest park before the condition is checked again. Bounds what a lost wake can cost: a waiter
  // may look for more than the word it parks on, and a device without wakes sends none.
  int64_t park_us = 5'000;

  // The other side needs this core: leave it at once. At first by yielding, since whoever sleeps on
  // an idle core comes 10 to 50 us late; small layers take no longer than that altogether.
  static constexpr WaitPolicy SharedCores() { return {0, 50, 5'000}; }
  // Nobody else needs this core: the waits inside a step, a device's layer long, stay out of the
  // kernel's wait queues. Yielding leaves the core to whoever came there all the same.
  static constexpr WaitPolicy OwnCores() { return {1'000, 10'000, 1'000}; }
  // The other side cannot wake: short naps instead of parks.
  WaitPolicy WithoutWakes() const {
    WaitPolicy policy = *this;
    policy.park_us = 50;
    return policy;
  }
};

// A word to wait for, with a cache line of its own. `parked` counts those who sleep on it, so that
// whoever changes the value enters the kernel only when somebody does. A process that dies while it
// sleeps leaves its count behind, which costs needless wakes and no more.
struct alignas(64) WaitWord {
  std::atomic<uint32_t> value{0};
  std::atomic<uint32_t> parked{0};
};
static_assert(sizeof(WaitWord) == 64);

// Until `ready` (called often; reads shared words with acquire order) or the deadline of
// base::SystemClock; returns whether it became ready. `word` is what the other side changes and
// wakes.
bool WaitUntil(WaitWord& word, absl::FunctionRef<bool()> ready, int64_t deadline_us,
               const WaitPolicy& policy);

// Changes the value (release order) and wakes those who sleep on it.
void StoreAndWake(WaitWord& word, uint32_t value);
void IncrementAndWake(WaitWord& word);
// After a change that was made by a sequentially consistent operation.
void WakeParked(WaitWord& word);
// Wakes without having changed anything: the sleepers look for something else.
void WakeAll(WaitWord& word);

// Sleeps and wakes of this process's threads so far: none while everybody is met awake.
uint64_t KernelWaitCalls();

}  // namespace tandem::exchange
