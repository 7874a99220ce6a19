#include "gpu_worker/service/memory_info.h"

#include <gtest/gtest.h>

namespace tandem::gpu_worker {
namespace {

constexpr char kMemInfo[] =
    "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    800 kB\n";

TEST(MemoryInfo, OfTheMachine) {
  for (const char* limit : {"", "max\n", "999999999999\n"}) {
    const auto info = ParseMemoryInfo(kMemInfo, limit, "5\n");
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->total_bytes, 1000u * 1024);
    EXPECT_EQ(info->available_bytes, 800u * 1024);
  }
}

TEST(MemoryInfo, OfTheControlGroup) {
  const auto info = ParseMemoryInfo(kMemInfo, "204800\n", "102400\n");
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->total_bytes, 204800u);
  EXPECT_EQ(info->available_bytes, 102400u);
  EXPECT_EQ(ParseMemoryInfo(kMemInfo, "100\n", "900\n")->available_bytes, 0u);
}

TEST(MemoryInfo, MissingFieldsAreErrors) {
  EXPECT_FALSE(ParseMemoryInfo("MemTotal: 5 kB\n", "", "").ok());
  EXPECT_FALSE(ParseMemoryInfo("MemTotal: x kB\nMemAvailable: 5 kB\n", "", "").ok());
}

TEST(MemoryInfo, ThisMachineHasSome) {
  const auto info = ReadMemoryInfo();
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_GT(info->total_bytes, 0u);
  EXPECT_LE(info->available_bytes, info->total_bytes);
}

}  // namespace
}  // namespace tandem::gpu_worker
