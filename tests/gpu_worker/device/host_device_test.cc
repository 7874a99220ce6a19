#include "gpu_worker/device/host/host_device.h"

#include <cstdint>
#include <cstring>
#include <thread>

#include "gtest/gtest.h"

namespace tandem::gpu_worker::device {
namespace {

TEST(HostDeviceTest, AllocatesAlignedMemory) {
  auto device = CreateHostDevice({});
  auto small = device->Allocate(100, "small");
  auto large = device->Allocate(size_t{5} << 20, "large");
  ASSERT_TRUE(small.ok());
  ASSERT_TRUE(large.ok());
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*small)->data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*large)->data()) % (2u << 20), 0u);
  EXPECT_EQ((*large)->bytes(), size_t{5} << 20);
  std::memset((*large)->data(), 1, (*large)->bytes());
}

TEST(HostDeviceTest, RefusesMoreThanTheMachineHas) {
  auto device = CreateHostDevice({});
  const auto buffer = device->Allocate(size_t{900} << 40, "the KV pool");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(buffer.status().message().find("the KV pool"), std::string::npos);
}

TEST(HostDeviceTest, MemoryInfoIsPlausible) {
  const MemoryInfo info = CreateHostDevice({})->memory();
  EXPECT_GT(info.total_bytes, 0u);
  EXPECT_GT(info.free_bytes, 0u);
  EXPECT_LE(info.free_bytes, info.total_bytes);
}

TEST(HostDeviceTest, ComputeStreamHasItsOwnThread) {
  auto device = CreateHostDevice({});
  auto stream = device->CreateComputeStream();
  std::thread::id id;
  stream->Launch([&] {
    id = std::this_thread::get_id();
    return absl::OkStatus();
  });
  ASSERT_TRUE(stream->Synchronize(30'000'000).ok());
  EXPECT_NE(id, std::this_thread::get_id());
}

}  // namespace
}  // namespace tandem::gpu_worker::device
