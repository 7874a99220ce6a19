#include "gpu_worker/device/paced/paced_device.h"

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "gtest/gtest.h"
#include "tests/gpu_worker/device/fake_pace_clock.h"

namespace tandem::gpu_worker::device {
namespace {

constexpr int64_t kTimeoutUs = 10'000'000;
constexpr double kStartUs = 1000;  // of the fake clock

DeviceProfile SmallProfile() {
  DeviceProfile profile;
  profile.name = "small";
  profile.gpu_memory_gb = 1;
  return profile;
}

class PacedDeviceTest : public testing::Test {
 protected:
  PacedDeviceTest()
      : device_(SmallProfile(), &clock_),
        compute_(device_.CreateComputeStream()),
        transfer_(device_.CreateTransferStream()) {}

  PacedStream& compute() { return static_cast<PacedStream&>(*compute_); }
  PacedStream& transfer() { return static_cast<PacedStream&>(*transfer_); }
  void Synchronize() {
    ASSERT_TRUE(compute().Synchronize(kTimeoutUs).ok());
    ASSERT_TRUE(transfer().Synchronize(kTimeoutUs).ok());
  }

  FakePaceClock clock_;
  PacedDevice device_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<Stream> transfer_;
};

TEST_F(PacedDeviceTest, ChargesAddUpAndSynchronizeWaitsForThem) {
  double stamps[2] = {0, 0};
  compute().Charge(100);
  compute().Stamp(&stamps[0]);
  compute().Charge(250);
  compute().Stamp(&stamps[1]);
  EXPECT_EQ(clock_.NowUs(), kStartUs);  // queueing takes no time
  Synchronize();
  EXPECT_EQ(stamps[0], kStartUs + 100);
  EXPECT_EQ(stamps[1], kStartUs + 350);
  EXPECT_EQ(clock_.NowUs(), kStartUs + 350);
}

TEST_F(PacedDeviceTest, AnIdleStreamBeginsWhenWorkIsQueued) {
  clock_.AdvanceTo(5000);
  double stamp = 0;
  compute().Charge(10);
  compute().Stamp(&stamp);
  Synchronize();
  EXPECT_EQ(stamp, 5010);
}

TEST_F(PacedDeviceTest, StreamsRunSideBySideAndEventsOrderThem) {
  const std::unique_ptr<Event> event = device_.CreateEvent();
  EXPECT_TRUE(event->Reached());
  double after_wait = 0;
  double beside = 0;
  compute().Charge(300);
  compute().Record(*event);
  transfer().Charge(20);
  transfer().Stamp(&beside);
  transfer().WaitFor(*event);
  transfer().Charge(50);
  transfer().Stamp(&after_wait);
  EXPECT_FALSE(event->Reached());
  Synchronize();
  EXPECT_EQ(beside, kStartUs + 20);
  EXPECT_EQ(after_wait, kStartUs + 350);
  EXPECT_TRUE(event->Reached());
}

TEST_F(PacedDeviceTest, AWaitForAnEarlierEventTakesTheLaterOfBothTimes) {
  const std::unique_ptr<Event> event = device_.CreateEvent();
  double stamp = 0;
  compute().Charge(10);
  compute().Record(*event);
  transfer().Charge(500);
  transfer().WaitFor(*event);
  transfer().Stamp(&stamp);
  Synchronize();
  EXPECT_EQ(stamp, kStartUs + 500);
}

TEST_F(PacedDeviceTest, LaunchedWorkRunsAtItsDeviceTimeAndInOrder) {
  std::vector<std::pair<int, double>> ran;
  const auto note = [&](int id) {
    return [&, id] {
      ran.emplace_back(id, clock_.NowUs());
      return absl::OkStatus();
    };
  };
  compute().Charge(100);
  compute().Launch(note(1));
  compute().Charge(40);
  compute().Launch(note(2));
  Synchronize();
  const std::vector<std::pair<int, double>> expected = {{1, kStartUs + 100}, {2, kStartUs + 140}};
  EXPECT_EQ(ran, expected);
}

TEST_F(PacedDeviceTest, WorkForATimeTakesItOrWhatItReallyTakes) {
  double began[2] = {0, 0};
  double stamps[2] = {0, 0};
  compute().Charge(100);
  compute().LaunchFor(50, [&] {
    began[0] = clock_.NowUs();
    return absl::OkStatus();
  });
  compute().Stamp(&stamps[0]);
  compute().LaunchFor(50, [&] {
    began[1] = clock_.NowUs();
    clock_.AdvanceTo(clock_.NowUs() + 80);
    return absl::OkStatus();
  });
  compute().Stamp(&stamps[1]);
  Synchronize();
  EXPECT_EQ(began[0], kStartUs + 100);
  EXPECT_EQ(stamps[0], kStartUs + 150);
  EXPECT_EQ(began[1], kStartUs + 150);
  EXPECT_EQ(stamps[1], kStartUs + 230);
}

TEST_F(PacedDeviceTest, WorkAheadRunsAtOnceAndHoldsTimeUpOnlyWhenItBlocks) {
  double ran_at = 0;
  double after_quick = 0;
  double after_blocking = 0;
  compute().Charge(100);
  compute().LaunchAhead([&] {
    ran_at = clock_.NowUs();
    return absl::OkStatus();
  });
  compute().Stamp(&after_quick);
  compute().LaunchAhead([&] {
    clock_.AdvanceTo(kStartUs + 700);
    return absl::OkStatus();
  });
  compute().Stamp(&after_blocking);
  Synchronize();
  EXPECT_EQ(ran_at, kStartUs);
  EXPECT_EQ(after_quick, kStartUs + 100);
  EXPECT_EQ(after_blocking, kStartUs + 700);
}

TEST_F(PacedDeviceTest, AnErrorSkipsWorkAndTimeButReachesEvents) {
  const std::unique_ptr<Event> event = device_.CreateEvent();
  std::atomic<bool> ran{false};
  compute().Launch([] { return absl::UnavailableError("gone"); });
  compute().Charge(1e6);
  compute().Launch([&] {
    ran = true;
    return absl::OkStatus();
  });
  compute().Record(*event);
  EXPECT_EQ(compute().Synchronize(kTimeoutUs).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(event->Wait(kTimeoutUs).ok());
  EXPECT_FALSE(ran);
  EXPECT_LT(clock_.NowUs(), kStartUs + 1e6);
  EXPECT_TRUE(compute().Synchronize(kTimeoutUs).ok());
}

TEST_F(PacedDeviceTest, SynchronizeAndEventWaitEndAtTheirDeadlines) {
  const std::unique_ptr<Event> event = device_.CreateEvent();
  compute().Charge(5000);
  compute().Record(*event);
  EXPECT_TRUE(absl::IsDeadlineExceeded(compute().Synchronize(1000)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(event->Wait(1000)));
  EXPECT_TRUE(event->Wait(kTimeoutUs).ok());
  EXPECT_TRUE(compute().Synchronize(kTimeoutUs).ok());
}

TEST_F(PacedDeviceTest, MoreThanTheQueueHoldsIsTakenInOrder) {
  int next = 0;
  bool in_order = true;
  for (int i = 0; i < static_cast<int>(PacedStream::kCapacity) + 500; ++i) {
    compute().Charge(1);
    compute().Launch([&, i] {
      in_order = in_order && next == i;
      ++next;
      return absl::OkStatus();
    });
  }
  Synchronize();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(next, static_cast<int>(PacedStream::kCapacity) + 500);
}

uint64_t ResidentKiB() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "VmRSS:") {
      uint64_t kib = 0;
      status >> kib;
      return kib;
    }
  }
  return 0;
}

TEST_F(PacedDeviceTest, MemoryIsCountedAndNotTaken) {
  const uint64_t before_kib = ResidentKiB();
  EXPECT_EQ(device_.memory().total_bytes, 1'000'000'000u);
  auto weights = device_.Allocate(900'000'000, "the weights");
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ((*weights)->bytes(), 900'000'000u);
  EXPECT_EQ(device_.memory().free_bytes, 100'000'000u);
  const auto refused = device_.Allocate(100'000'001, "the pool");
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("paced:small"), std::string::npos);
  EXPECT_LT(ResidentKiB(), before_kib + 100'000);
  weights->reset();
  EXPECT_EQ(device_.memory().free_bytes, 1'000'000'000u);
}

TEST(RealPaceClockTest, SleepsNoShorterThanAsked) {
  PaceClock& clock = RealPaceClock();
  for (int i = 0; i < 20; ++i) {
    const double until_us = clock.NowUs() + 300;
    clock.SleepUntil(until_us);
    EXPECT_GE(clock.NowUs(), until_us);
  }
  clock.SleepUntil(0);  // long past: at once
}

}  // namespace
}  // namespace tandem::gpu_worker::device
