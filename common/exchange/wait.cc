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

// Between two yields: a system call each would slow down what the other side writes.
constexpr int kSpinsPerYield = 16;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // longer than `yield`, which most cores ignore
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

std::atomic<uint64_t> kernel_wait_calls{0};

uint32_t* FutexAddress(std::atomic<uint32_t>& word) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(&word);
}

// Shared between processes. Every outcome (woken, value changed, timeout, signal) means: look
// again.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t timeout_us) {
  kernel_wait_calls.fetch_add(1, std::memory_order_relaxed);
  timespec timeout{};
  timeout.tv_sec = timeout_us / 1'000'000;
  timeout.tv_nsec = timeout_us % 1'000'000 * 1'000;
  syscall(SYS_futex, FutexAddress(word), FUTEX_WAIT, expected, &timeout, nullptr, 0);
}

bool Spin(absl::FunctionRef<bool()> ready, int32_t spins) {
  for (int32_t i = 0; i < spins; ++i) {
    if (ready()) {
      return true;
    }
    Pause();
  }
  return false;
}

bool Yield(absl::FunctionRef<bool()> ready, int64_t until_us) {
  while (base::SystemClock().NowUs() < until_us) {
    if (Spin(ready, kSpinsPerYield)) {
      return true;
    }
    sched_yield();
  }
  return false;
}

}  // namespace

uint64_t KernelWaitCalls() { return kernel_wait_calls.load(std::memory_order_relaxed); }

void WakeAll(WaitWord& word) {
  kernel_wait_calls.fetch_add(1, std::memory_order_relaxed);
  syscall(SYS_futex, FutexAddress(word.value), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void WakeParked(WaitWord& word) {
  // The waiter counts itself, then the kernel compares the value; here the value is changed, then
  // the count read, all in one total order: one of the two sees the other.
  if (word.parked.load(std::memory_order_seq_cst) != 0) {
    WakeAll(word);
  }
}

void StoreAndWake(WaitWord& word, uint32_t value) {
  word.value.store(value, std::memory_order_seq_cst);
  WakeParked(word);
}

void IncrementAndWake(WaitWord& word) {
  word.value.fetch_add(1, std::memory_order_seq_cst);
  WakeParked(word);
}

bool WaitUntil(WaitWord& word, absl::FunctionRef<bool()> ready, int64_t deadline_us,
               const WaitPolicy& policy) {
  const base::Clock& clock = base::SystemClock();
  if (Spin(ready, policy.spins)) {
    return true;
  }
  if (policy.yield_us > 0 && Yield(ready, std::min(deadline_us, clock.NowUs() + policy.yield_us))) {
    return true;
  }
  while (true) {
    // Read before the check: a change between check and park then fails the futex's comparison.
    const uint32_t seen = word.value.load(std::memory_order_acquire);
    if (ready()) {
      return true;
    }
    const int64_t left_us = deadline_us - clock.NowUs();
    if (left_us <= 0) {
      return false;
    }
    word.parked.fetch_add(1, std::memory_order_seq_cst);
    FutexWait(word.value, seen, std::min(left_us, policy.park_us));
    word.parked.fetch_sub(1, std::memory_order_seq_cst);
  }
}

}  // namespace tandem::exchange
