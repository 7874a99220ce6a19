#include "gpu_worker/device/cuda/cuda_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

// On the driver that the loader finds: by ctest a fake of it (tests/fakes/cuda), or a GPU's own.
namespace tandem::gpu_worker::device {
namespace {

constexpr int64_t kTimeoutUs = 20'000'000;

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    auto device = CreateCudaDevice();
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    compute_ = device_->CreateComputeStream();
    transfer_ = device_->CreateTransferStream();
  }
  CudaStream& compute() { return static_cast<CudaStream&>(*compute_); }
  CudaStream& transfer() { return static_cast<CudaStream&>(*transfer_); }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> transfer_;
};

TEST_F(CudaDeviceTest, BytesGoToTheDeviceAndBack) {
  const std::vector<int32_t> values = {1, -2, 3, 400'000};
  const size_t bytes = values.size() * sizeof(int32_t);
  auto there = device_->Allocate(bytes, "values").value();
  auto back = device_->AllocateHost(bytes, "values").value();
  ASSERT_TRUE(device_->Upload(there->data(), values.data(), bytes).ok());
  compute().CopyToHost(back->data(), there->data(), bytes);
  ASSERT_TRUE(compute().Synchronize(kTimeoutUs).ok());
  EXPECT_EQ(std::memcmp(back->data(), values.data(), bytes), 0);
  compute().Clear(there->data(), 2 * sizeof(int32_t));
  compute().CopyToHost(back->data(), there->data(), bytes);
  ASSERT_TRUE(compute().Synchronize(kTimeoutUs).ok());
  EXPECT_EQ(back->as<int32_t>()[1], 0);
  EXPECT_EQ(back->as<int32_t>()[2], 3);
}

TEST_F(CudaDeviceTest, UploadsKeepWhatTheHostMemoryHeldThen) {
  auto back = device_->AllocateHost(3'000'000, "values").value();
  std::vector<std::byte> values(3'000'000, std::byte{7});  // more than a chunk of the arena
  for (const size_t bytes : {size_t{100}, values.size(), size_t{4}}) {
    const std::byte* there = compute().Upload(values.data(), bytes);
    ASSERT_NE(there, nullptr);
    std::fill(values.begin(), values.end(), std::byte{8});
    compute().CopyToHost(back->data(), there, bytes);
    ASSERT_TRUE(compute().Synchronize(kTimeoutUs).ok());
    EXPECT_EQ(back->data()[0], std::byte{7});
    EXPECT_EQ(back->data()[bytes - 1], std::byte{7});
    std::fill(values.begin(), values.end(), std::byte{7});
  }
}

TEST_F(CudaDeviceTest, EventsOrderStreams) {
  std::atomic<int> at{0};
  int seen = -1;
  auto event = device_->CreateEvent();
  EXPECT_TRUE(event->Reached());  // never recorded
  compute().Launch([&at] {
    std::this_thread::yield();
    at.store(1);
    return absl::OkStatus();
  });
  compute().Record(*event);
  transfer().WaitFor(*event);
  transfer().Launch([&at, &seen] {
    seen = at.load();
    return absl::OkStatus();
  });
  ASSERT_TRUE(transfer().Synchronize(kTimeoutUs).ok());
  EXPECT_EQ(seen, 1);
  EXPECT_TRUE(event->Wait(kTimeoutUs).ok());
  EXPECT_TRUE(compute().Synchronize(kTimeoutUs).ok());
}

TEST_F(CudaDeviceTest, TheFirstErrorStaysUntilSynchronize) {
  int runs = 0;
  compute().Launch([&runs] {
    ++runs;
    return absl::UnavailableError("first");
  });
  compute().Launch([&runs] {
    ++runs;
    return absl::InternalError("second");
  });
  compute().CheckAfterwards([] { return absl::InternalError("third"); });
  EXPECT_EQ(compute().Synchronize(kTimeoutUs).message(), "first");
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(compute().Synchronize(kTimeoutUs).ok());
}

TEST_F(CudaDeviceTest, WordsOfTheHostAreWrittenAndAwaited) {
  constexpr size_t kPage = 4096;
  std::vector<std::byte> memory(3 * kPage);
  auto* page = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(memory.data()) + kPage - 1) / kPage * kPage);
  auto registration = device_->Register(page, kPage);
  ASSERT_TRUE(registration.ok()) << registration.status();
  auto* words = reinterpret_cast<std::atomic<uint32_t>*>(page);
  words[0].store(0);
  words[1].store(0);
  ASSERT_TRUE(transfer().WriteWord(reinterpret_cast<uint32_t*>(&words[0]), 5));
  ASSERT_TRUE(transfer().WaitWord(reinterpret_cast<uint32_t*>(&words[1]), 3));
  EXPECT_TRUE(absl::IsDeadlineExceeded(transfer().Synchronize(20'000)));
  EXPECT_EQ(words[0].load(), 5u);
  words[1].store(0x7fffffff);  // larger than any layer
  EXPECT_TRUE(transfer().Synchronize(kTimeoutUs).ok());
}

TEST_F(CudaDeviceTest, StampsGrowAlongAStream) {
  double times[3] = {};
  for (double& time : times) {
    compute().Stamp(&time);
    compute().Launch([] { return absl::OkStatus(); });
  }
  ASSERT_TRUE(compute().Synchronize(kTimeoutUs).ok());
  EXPECT_GT(times[0], 0.0);
  EXPECT_LE(times[0], times[1]);
  EXPECT_LE(times[1], times[2]);
}

// Clears on one stream, copies on another, and back; the host changes what it starts from.
TEST_F(CudaDeviceTest, AGraphDoesAgainWhatWasCaptured) {
  constexpr size_t kBytes = 64;
  auto there = device_->Allocate(2 * kBytes, "values").value();
  auto back = device_->AllocateHost(2 * kBytes, "values").value();
  auto forth = device_->CreateEvent();
  auto done = device_->CreateEvent();
  double times[2] = {};
  CudaStream* const others[] = {&transfer()};
  auto graph = compute().Capture(others, [&] {
    compute().Stamp(&times[0]);
    compute().Clear(there->data(), kBytes);
    compute().Record(*forth);
    transfer().WaitFor(*forth);
    transfer().CopyToHost(back->data(), there->data(), 2 * kBytes);
    transfer().Record(*done);
    compute().WaitFor(*done);
    compute().Clear(there->data() + kBytes, kBytes);
    compute().Stamp(&times[1]);
    return absl::OkStatus();
  });
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int value : {5, 6}) {
    const std::vector<std::byte> values(2 * kBytes, std::byte(value));
    ASSERT_TRUE(device_->Upload(there->data(), values.data(), values.size()).ok());
    std::fill(back->data(), back->data() + 2 * kBytes, std::byte{1});
    const double before = times[1];
    compute().LaunchGraph(**graph);
    ASSERT_TRUE(compute().Synchronize(kTimeoutUs).ok());
    EXPECT_EQ(back->data()[0], std::byte{0});
    EXPECT_EQ(back->data()[2 * kBytes - 1], std::byte(value));
    EXPECT_GE(times[0], before);
    EXPECT_GE(times[1], times[0]);
  }
}

TEST_F(CudaDeviceTest, WhatCannotBeCapturedIsAnErrorAndNothingIsQueued) {
  auto there = device_->Allocate(64, "values").value();
  auto event = device_->CreateEvent();
  CudaStream* const others[] = {&transfer()};
  bool ran = false;
  const int32_t table = 0;
  const std::vector<std::function<absl::Status()>> wrong = {
      [&] {
        compute().Launch([&ran] {
          ran = true;
          return absl::OkStatus();
        });
        return absl::OkStatus();
      },
      [&] {
        (void)compute().Upload(&table, sizeof(table));
        return absl::OkStatus();
      },
      [&] {  // the other stream is left out
        compute().Record(*event);
        transfer().WaitFor(*event);
        transfer().Clear(there->data(), 64);
        return absl::OkStatus();
      },
      [] { return absl::UnavailableError("no"); }};
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_FALSE(compute().Capture(others, wrong[i]).ok()) << i;
    EXPECT_TRUE(compute().Synchronize(kTimeoutUs).ok()) << i;
    EXPECT_TRUE(transfer().Synchronize(kTimeoutUs).ok()) << i;
  }
  EXPECT_FALSE(ran);
}

TEST_F(CudaDeviceTest, TooMuchMemoryIsRefusedWithWhatToLower) {
  const auto refused = device_->Allocate(size_t{1} << 50, "the device KV pool");
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()),
              testing::AllOf(testing::HasSubstr("the device KV pool"),
                             testing::HasSubstr("--gpu-memory-utilization")));
}

TEST_F(CudaDeviceTest, KernelsThatThisBuildLacksAreNamed) {
  const absl::Status status =
      device_->LaunchKernel({.name = "no_such_kernel"}, compute().handle(), &kTimeoutUs);
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("no_such_kernel"));
}

}  // namespace
}  // namespace tandem::gpu_worker::device
