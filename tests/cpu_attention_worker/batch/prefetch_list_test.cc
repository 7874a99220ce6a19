#include "cpu_attention_worker/batch/prefetch_list.h"

#include <gtest/gtest.h>

#include <vector>

namespace tandem::cpu_attention_worker {
namespace {

int Steps(PrefetchList& list) {
  int steps = 0;
  while (list.Step()) {
    ++steps;
  }
  return steps;
}

TEST(PrefetchList, GoesThroughEveryRangeInKilobytes) {
  const std::vector<std::byte> memory(8192);
  PrefetchList list(1 << 20);
  EXPECT_TRUE(list.Add(memory.data(), 2500));
  EXPECT_TRUE(list.Add(memory.data() + 4096, 1));
  EXPECT_EQ(list.bytes(), 2501u);
  EXPECT_EQ(Steps(list), 3 + 1);
  EXPECT_EQ(Steps(list), 0);
}

TEST(PrefetchList, KeepsToItsBudget) {
  const std::vector<std::byte> memory(8192);
  PrefetchList list(3000);
  EXPECT_TRUE(list.Add(memory.data(), 2000));
  EXPECT_FALSE(list.Add(memory.data() + 2000, 2000));
  EXPECT_FALSE(list.Add(memory.data(), 1));
  EXPECT_EQ(list.bytes(), 3000u);
  list.Clear();
  EXPECT_EQ(list.bytes(), 0u);
  EXPECT_FALSE(list.Step());
  EXPECT_TRUE(list.Add(memory.data(), 3000));
}

TEST(PrefetchList, IsBoundedInRanges) {
  const std::byte byte{};
  PrefetchList list(1 << 20);
  int taken = 0;
  while (taken < 100'000 && list.Add(&byte, 1)) {
    ++taken;
  }
  EXPECT_LT(taken, 1000);
  EXPECT_EQ(Steps(list), taken);
}

TEST(PrefetchList, MemoryThatIsGoneDoesNoHarm) {
  PrefetchList list(1 << 20);
  EXPECT_TRUE(list.Add(reinterpret_cast<const std::byte*>(uintptr_t{4096}), 4096));
  EXPECT_EQ(Steps(list), 4);
}

}  // namespace
}  // namespace tandem::cpu_attention_worker
