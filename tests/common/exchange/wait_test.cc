#include "common/exchange/wait.h"

#include <gtest/gtest.h>

#include <thread>

#include "common/base/clock.h"

namespace tandem::exchange {
namespace {

constexpr int64_t kLongUs = 60'000'000;

int64_t InUs(int64_t us) { return base::SystemClock().NowUs() + us; }

class WaitTest : public testing::TestWithParam<WaitPolicy> {};
INSTANTIATE_TEST_SUITE_P(Policies, WaitTest,
                         testing::Values(WaitPolicy::SharedCores(), WaitPolicy::OwnCores(),
                                         WaitPolicy::OwnCores().WithoutWakes(),
                                         // So long a park that only a wake can end it in time.
                                         WaitPolicy{0, 0, kLongUs}));

TEST_P(WaitTest, AHandoverToAndFroLosesNoWake) {
  WaitWord there;
  WaitWord back;
  constexpr uint32_t kRounds = 3000;
  const uint64_t calls = KernelWaitCalls();
  std::thread other([&] {
    for (uint32_t i = 1; i <= kRounds; ++i) {
      ASSERT_TRUE(WaitUntil(
          there, [&] { return there.value.load(std::memory_order_acquire) >= i; }, InUs(kLongUs),
          GetParam()));
      IncrementAndWake(back);
    }
  });
  for (uint32_t i = 1; i <= kRounds; ++i) {
    StoreAndWake(there, i);
    ASSERT_TRUE(WaitUntil(
        back, [&] { return back.value.load(std::memory_order_acquire) >= i; }, InUs(kLongUs),
        GetParam()));
  }
  other.join();
  EXPECT_EQ(there.parked.load(), 0u);
  EXPECT_EQ(back.parked.load(), 0u);
  if (GetParam().yield_us > 0) {
    // Two that are awake need no kernel; another program may hold one of them up now and then.
    EXPECT_LT(KernelWaitCalls() - calls, kRounds / 10);
  } else {
    EXPECT_GT(KernelWaitCalls() - calls, 0u) << "this counts nothing";
  }
}

TEST_P(WaitTest, EndsAtTheDeadline) {
  WaitWord word;
  const int64_t deadline_us = InUs(2'000);
  EXPECT_FALSE(WaitUntil(
      word, [] { return false; }, deadline_us, GetParam()));
  EXPECT_GE(base::SystemClock().NowUs(), deadline_us);
}

TEST(Wait, SomebodyWhoSleepsIsCounted) {
  WaitWord word;
  std::thread sleeper([&] {
    WaitUntil(word, [&] { return word.value.load(std::memory_order_acquire) != 0; }, InUs(kLongUs),
              {0, 0, kLongUs});
  });
  while (word.parked.load() == 0) {
    std::this_thread::yield();
  }
  StoreAndWake(word, 1);
  sleeper.join();
  EXPECT_EQ(word.parked.load(), 0u);
}

TEST(Wait, ASharedCoreIsGivenUp) {
  WaitWord word;
  const uint64_t before = KernelWaitCalls();
  WaitUntil(
      word, [] { return false; }, InUs(20'000), WaitPolicy::SharedCores());
  // It sleeps 5 ms at a time but for the first moments.
  EXPECT_GE(KernelWaitCalls() - before, 1);
  EXPECT_LE(KernelWaitCalls() - before, 5);
  EXPECT_EQ(WaitPolicy::SharedCores().spins, 0);
}

}  // namespace
}  // namespace tandem::exchange
