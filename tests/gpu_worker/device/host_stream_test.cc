#include "gpu_worker/device/host/host_stream.h"

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::gpu_worker::device {
namespace {

constexpr int64_t kLongUs = 30'000'000;

// Work that holds its stream until it is let go.
class Gate {
 public:
  std::function<absl::Status()> Work() {
    return [future = open_.get_future().share()] {
      future.wait();
      return absl::OkStatus();
    };
  }
  void Open() { open_.set_value(); }

 private:
  std::promise<void> open_;
};

std::function<absl::Status()> Do(std::function<void()> action) {
  return [action] {
    action();
    return absl::OkStatus();
  };
}

TEST(HostStreamTest, RunsInOrderAndLater) {
  HostStream stream("test", nullptr);
  Gate gate;
  std::vector<int> order;
  stream.Launch(gate.Work());
  for (int i = 0; i < 100; ++i) {
    stream.Launch(Do([&order, i] { order.push_back(i); }));
  }
  EXPECT_EQ(stream.Synchronize(1000).code(), absl::StatusCode::kDeadlineExceeded);
  gate.Open();
  ASSERT_TRUE(stream.Synchronize(kLongUs).ok());
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(order[i], i);
  }
}

TEST(HostStreamTest, EventOrdersTwoStreams) {
  HostStream first("first", nullptr);
  HostStream second("second", nullptr);
  HostEvent event;
  Gate gate;
  std::atomic<int> value{0};
  int seen = -1;
  first.Launch(gate.Work());
  first.Launch(Do([&] { value = 7; }));
  first.Record(event);
  second.WaitFor(event);
  second.Launch(Do([&] { seen = value; }));
  EXPECT_FALSE(event.Reached());
  EXPECT_EQ(event.Wait(1000).code(), absl::StatusCode::kDeadlineExceeded);
  gate.Open();
  ASSERT_TRUE(second.Synchronize(kLongUs).ok());
  EXPECT_EQ(seen, 7);
  EXPECT_TRUE(event.Reached());
  EXPECT_TRUE(event.Wait(0).ok());
  ASSERT_TRUE(first.Synchronize(kLongUs).ok());
}

TEST(HostStreamTest, WaitRefersToNewestRecordWhenQueued) {
  HostStream first("first", nullptr);
  HostStream second("second", nullptr);
  HostEvent event;
  second.WaitFor(event);  // never recorded: no wait
  ASSERT_TRUE(second.Synchronize(kLongUs).ok());
  first.Record(event);
  ASSERT_TRUE(first.Synchronize(kLongUs).ok());
  second.WaitFor(event);
  Gate gate;
  first.Launch(gate.Work());
  first.Record(event);  // a later record does not hold up the wait queued before it
  ASSERT_TRUE(second.Synchronize(kLongUs).ok());
  gate.Open();
  ASSERT_TRUE(first.Synchronize(kLongUs).ok());
}

TEST(HostStreamTest, FirstErrorSkipsWorkUntilSynchronizeButReachesEvents) {
  HostStream stream("test", nullptr);
  HostEvent event;
  int ran = 0;
  stream.Launch([] { return absl::UnavailableError("first"); });
  stream.Launch(Do([&] { ++ran; }));
  stream.Launch([] { return absl::InternalError("second"); });
  stream.Record(event);
  EXPECT_TRUE(event.Wait(kLongUs).ok());
  const absl::Status status = stream.Synchronize(kLongUs);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ran, 0);
  stream.Launch(Do([&] { ++ran; }));
  EXPECT_TRUE(stream.Synchronize(kLongUs).ok());
  EXPECT_EQ(ran, 1);
}

TEST(HostStreamTest, LibraryExceptionBecomesAnError) {
  HostStream stream("test", nullptr);
  stream.Launch([]() -> absl::Status { throw std::runtime_error("broken"); });
  const absl::Status status = stream.Synchronize(kLongUs);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("broken"), std::string::npos);
}

TEST(HostStreamTest, FullQueueHoldsTheQueueingThread) {
  HostStream stream("test", nullptr);
  Gate gate;
  std::atomic<int> ran{0};
  std::atomic<size_t> queued{0};
  stream.Launch(gate.Work());
  std::thread producer([&] {
    for (size_t i = 0; i < HostStream::kCapacity + 10; ++i) {
      stream.Launch(Do([&] { ++ran; }));
      ++queued;
    }
  });
  while (queued < HostStream::kCapacity - 1) {
    std::this_thread::yield();
  }
  EXPECT_EQ(ran, 0);
  EXPECT_LT(queued, HostStream::kCapacity + 1);
  gate.Open();
  producer.join();
  ASSERT_TRUE(stream.Synchronize(kLongUs).ok());
  EXPECT_EQ(ran, static_cast<int>(HostStream::kCapacity + 10));
}

TEST(HostStreamTest, DestructionFinishesTheQueue) {
  int ran = 0;
  {
    HostStream stream("test", nullptr);
    for (int i = 0; i < 50; ++i) {
      stream.Launch(Do([&] { ++ran; }));
    }
  }
  EXPECT_EQ(ran, 50);
}

}  // namespace
}  // namespace tandem::gpu_worker::device
