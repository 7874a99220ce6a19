#include "common/exchange/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

#include "common/base/clock.h"

namespace tandem::exchange {
namespace {

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

uint32_t* FutexWord(const std::atomic<uint32_t>& word) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(const_cast<std::atomic<uint32_t>*>(&word));
}

}  // namespace

void FutexWait(const std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_us) {
  timespec timeout{};
  timeout.tv_sec = timeout_us / 1'000'000;
  timeout.tv_nsec = timeout_us % 1'000'000 * 1'000;
  // Every outcome (woken, value changed, timeout, signal) means: look again.
  syscall(SYS_futex, FutexWord(word), FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, FutexWord(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool WaitUntil(const std::atomic<uint32_t>& word, absl::FunctionRef<bool()> ready,
               int64_t deadline_us, const WaitPolicy& policy) {
  for (int32_t i = 0; i < policy.spins; ++i) {
    if (ready()) {
      return true;
    }
    Pause();
  }
  for (int32_t i = 0; i < policy.yields; ++i) {
    if (ready()) {
      return true;
    }
    sched_yield();
  }
  const base::Clock& clock = base::SystemClock();
  while (true) {
    // Read before the check: a change between check and park then fails the futex's comparison.
    const uint32_t seen = word.load(std::memory_order_acquire);
    if (ready()) {
      return true;
    }
    const int64_t left_us = deadline_us - clock.NowUs();
    if (left_us <= 0) {
      return false;
    }
    FutexWait(word, seen, std::min(left_us, policy.park_us));
  }
}

}  // namespace tandem::exchange
