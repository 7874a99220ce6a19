#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/exchange/device_side.h"
#include "common/exchange/worker_side.h"
#include "tests/common/exchange/test_geometry.h"

namespace tandem::exchange {
namespace {

constexpr int64_t kTimeoutUs = 20'000'000;
using Kind = WorkerSide::LayerWork::Kind;

class ExchangeTest : public testing::Test {
 protected:
  void SetUp() override {
    device_ = DeviceSide::Create(SmallGeometry()).value();
    worker_ = Attach();
  }

  std::unique_ptr<WorkerSide> Attach() {
    shm::Region region =
        shm::Region::Map(dup(device_->region().fd()), device_->region().size()).value();
    return WorkerSide::Attach(std::move(region)).value();
  }

  absl::Status Begin(uint64_t epoch, const std::vector<SlotRow>& a,
                     const std::vector<SlotRow>& b = {}) {
    return device_->BeginStep(epoch, a, b, 0.5f, kTimeoutUs);
  }

  Doorbells& bells() {
    return *reinterpret_cast<Doorbells*>(device_->region().data() +
                                         device_->header().doorbells_offset);
  }

  const std::vector<int32_t> table_ = {3, 1, 15};
  const std::vector<SlotRow> rows_ = {{300, table_}, {1, table_}};
  std::unique_ptr<DeviceSide> device_;
  std::unique_ptr<WorkerSide> worker_;
};

TEST_F(ExchangeTest, ServesLayersInTheOrderOfTheSends) {
  std::thread device([&] {
    ASSERT_TRUE(Begin(1, rows_, {{128, table_}}).ok());
    for (int32_t layer = 0; layer < 3; ++layer) {
      for (int slot = 0; slot < 2; ++slot) {
        std::memcpy(device_->q(slot), &layer, sizeof(layer));
        device_->Post(slot, layer);
      }
      for (int slot = 0; slot < 2; ++slot) {
        ASSERT_EQ(device_->WaitDone(slot, layer, kTimeoutUs), WaitResult::kDone);
        int32_t answer = 0;
        std::memcpy(&answer, device_->o(slot), sizeof(answer));
        EXPECT_EQ(answer, 100 + layer);
      }
    }
  });
  ASSERT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed);
  EXPECT_EQ(worker_->epoch(), 1u);
  ASSERT_EQ(worker_->slot(0).rows.size(), 2u);
  EXPECT_EQ(worker_->slot(0).rows[0].context_tokens, 300u);
  EXPECT_EQ(worker_->slot(0).Table(worker_->slot(0).rows[0])[2], 15);
  EXPECT_EQ(worker_->slot(0).rows[1].table_count, 1u);
  EXPECT_EQ(worker_->slot(1).scale, 0.5f);
  for (int i = 0; i < 6; ++i) {
    const WorkerSide::LayerWork work = worker_->NextLayer(kTimeoutUs);
    ASSERT_EQ(work.kind, Kind::kLayer);
    EXPECT_EQ(work.slot, i % 2);
    EXPECT_EQ(work.layer, i / 2);
    int32_t seen = 0;
    std::memcpy(&seen, worker_->q(work.slot), sizeof(seen));
    seen += 100;
    std::memcpy(worker_->o(work.slot), &seen, sizeof(seen));
    EXPECT_TRUE(worker_->SignalDone(work.slot, work.layer));
  }
  EXPECT_EQ(worker_->NextLayer(kTimeoutUs).kind, Kind::kFinished);
  device.join();
}

TEST(SharedSlotTest, ALayerIsPostedOnceEveryDeviceRang) {
  Geometry geometry = SmallGeometry();
  geometry.num_posters = 3;
  const auto device = DeviceSide::Create(geometry).value();
  const auto worker =
      WorkerSide::Attach(
          shm::Region::Map(dup(device->region().fd()), device->region().size()).value())
          .value();
  const std::vector<int32_t> table = {1};
  const std::vector<SlotRow> rows = {{1, table}};
  for (uint64_t epoch = 1; epoch < 3; ++epoch) {  // the second begins with bells that rang
    std::thread engine(
        [&] { ASSERT_TRUE(device->BeginStep(epoch, rows, {}, 0.5f, kTimeoutUs).ok()); });
    ASSERT_EQ(worker->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed);
    engine.join();
    for (int32_t layer = 0; layer < 3; ++layer) {
      for (const int poster : {2, 0}) {
        device->PostPart(0, layer, poster);
        EXPECT_EQ(worker->NextLayer(0).kind, Kind::kNone);
      }
      std::thread last([&] { device->PostPart(0, layer, 1); });
      const WorkerSide::LayerWork work = worker->NextLayer(kTimeoutUs);
      last.join();
      ASSERT_EQ(work.kind, Kind::kLayer);
      EXPECT_EQ(work.layer, layer);
      EXPECT_TRUE(worker->SignalDone(0, layer));
    }
    EXPECT_EQ(worker->NextLayer(0).kind, Kind::kFinished);
  }
}

TEST(StepDescriptor, RowsMayNotShareEntriesOfTheirTables) {
  const RegionHeader header = ComputeLayout(SmallGeometry()).value();
  std::vector<std::byte> memory(header.pool_offset);
  const auto read = [&](uint64_t entries, uint64_t second_begin) {
    SlotHeader slot{};
    slot.epoch = 1;
    slot.num_rows = 2;
    slot.scale = 1.0f;
    slot.table_entries = entries;
    const RowDescriptor rows[2] = {{300, 3, 0}, {1, 1, second_begin}};
    std::memcpy(memory.data() + header.slots[0].header_offset, &slot, sizeof(slot));
    std::memcpy(memory.data() + header.slots[0].rows_offset, rows, sizeof(rows));
    StepSlot copy;
    return ReadSlot(header, memory.data(), 0, 1, &copy);
  };
  EXPECT_TRUE(read(4, 3).ok());
  EXPECT_EQ(read(3, 0).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ExchangeTest, AStepIsServedHoweverLateItIsArmed) {
  std::thread device([&] { ASSERT_TRUE(Begin(1, rows_).ok()); });
  // As often as the worker looks and finds nothing; the last look sees it armed.
  WorkerSide::StepEvent event = WorkerSide::StepEvent::kNone;
  while (event == WorkerSide::StepEvent::kNone) {
    event = worker_->WaitForStep(0);
  }
  EXPECT_EQ(event, WorkerSide::StepEvent::kArmed);
  device.join();
  // One that is aborted before it is armed is not.
  EXPECT_EQ(device_->BeginStep(2, {}, {}, 1.0f, 1'000).code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(worker_->WaitForStep(2'000), WorkerSide::StepEvent::kNone);
  EXPECT_EQ(bells().acked_epoch.value.load(), 2u);
  std::thread aborter([&] { ASSERT_TRUE(device_->AbortStep(2, kTimeoutUs).ok()); });
  while (bells().abort_acked_epoch.value.load() != 2) {
    EXPECT_EQ(worker_->WaitForStep(2'000), WorkerSide::StepEvent::kNone);
  }
  aborter.join();
  bells().armed_epoch.value.store(2);
  EXPECT_EQ(worker_->WaitForStep(2'000), WorkerSide::StepEvent::kNone);
}

TEST_F(ExchangeTest, AbortsWithoutEndDoNotKeepTheThread) {
  std::atomic<bool> stop{false};
  std::thread device([&] {
    for (uint64_t epoch = 100; !stop.load(); ++epoch) {
      device_->AbortStep(epoch, 1'000).IgnoreError();
    }
  });
  const int64_t started_us = base::SystemClock().NowUs();
  EXPECT_EQ(worker_->WaitForStep(20'000), WorkerSide::StepEvent::kNone);
  EXPECT_LT(base::SystemClock().NowUs() - started_us, 10'000'000);
  std::thread interrupter([&] { worker_->Interrupt(); });
  EXPECT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kNone);
  EXPECT_LT(base::SystemClock().NowUs() - started_us, 10'000'000);
  interrupter.join();
  stop.store(true);
  device.join();
}

TEST_F(ExchangeTest, TheLayerAfterFollowsTheOrderOfTheSends) {
  std::thread device([&] { ASSERT_TRUE(Begin(1, rows_, {{128, table_}}).ok()); });
  ASSERT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed);
  device.join();
  EXPECT_FALSE(worker_->LayerWaits());
  for (int i = 0; i < 6; ++i) {
    device_->Post(i % 2, i / 2);
    EXPECT_TRUE(worker_->LayerWaits());
    const WorkerSide::LayerWork work = worker_->NextLayer(kTimeoutUs);
    const WorkerSide::LayerWork next = worker_->LayerAfter(work.slot, work.layer);
    ASSERT_EQ(next.kind, i < 5 ? Kind::kLayer : Kind::kFinished);
    if (i < 5) {
      EXPECT_EQ(next.slot, (i + 1) % 2);
      EXPECT_EQ(next.layer, (i + 1) / 2);
    }
    worker_->SignalDone(work.slot, work.layer);
    EXPECT_FALSE(worker_->LayerWaits());
  }
}

TEST_F(ExchangeTest, TimingsPassAndNonsenseIsSeen) {
  const int64_t now_us = base::SystemClock().NowUs();
  worker_->RecordTiming(1, 2, now_us - 7, now_us - 5);
  EXPECT_EQ(device_->layer_timing(1, 2).begin_us, static_cast<uint64_t>(now_us - 7));
  EXPECT_EQ(device_->layer_timing(1, 2).end_us, static_cast<uint64_t>(now_us - 5));
  EXPECT_EQ(device_->layer_timing(0, 2).end_us, 0u);
  worker_->RecordTiming(1, 2, now_us, now_us - 1);
  EXPECT_EQ(device_->layer_timing(1, 2).begin_us, 0u);
  worker_->RecordTiming(1, 2, now_us, now_us + 3'600'000'000);
  EXPECT_EQ(device_->layer_timing(1, 2).begin_us, 0u);
}

TEST_F(ExchangeTest, ManyStepsBackToBack) {
  constexpr uint64_t kSteps = 200;
  std::thread device([&] {
    for (uint64_t epoch = 1; epoch <= kSteps; ++epoch) {
      const bool only_b = epoch % 3 == 0;
      ASSERT_TRUE((only_b ? Begin(epoch, {}, rows_) : Begin(epoch, rows_)).ok());
      for (int32_t layer = 0; layer < 3; ++layer) {
        device_->Post(only_b ? 1 : 0, layer);
        ASSERT_EQ(device_->WaitDone(only_b ? 1 : 0, layer, kTimeoutUs), WaitResult::kDone);
      }
    }
  });
  for (uint64_t epoch = 1; epoch <= kSteps; ++epoch) {
    ASSERT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed);
    ASSERT_EQ(worker_->epoch(), epoch);
    WorkerSide::LayerWork work = worker_->NextLayer(kTimeoutUs);
    for (; work.kind == Kind::kLayer; work = worker_->NextLayer(kTimeoutUs)) {
      worker_->SignalDone(work.slot, work.layer);
    }
    ASSERT_EQ(work.kind, Kind::kFinished);
  }
  device.join();
}

TEST_F(ExchangeTest, AbortLeavesTheStepAndALateAnswerIsNotTaken) {
  std::thread device([&] {
    ASSERT_TRUE(Begin(1, rows_).ok());
    device_->Post(0, 0);
    ASSERT_EQ(device_->WaitDone(0, 0, kTimeoutUs), WaitResult::kDone);
    ASSERT_TRUE(device_->AbortStep(1, kTimeoutUs).ok());
    ASSERT_TRUE(Begin(2, rows_).ok());
    // Layer 0 of the aborted step was done; of this one it is not.
    EXPECT_EQ(device_->WaitDone(0, 0, 1'000), WaitResult::kTimedOut);
    ASSERT_TRUE(device_->AbortStep(2, kTimeoutUs).ok());
  });
  ASSERT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed);
  ASSERT_EQ(worker_->NextLayer(kTimeoutUs).kind, Kind::kLayer);
  ASSERT_TRUE(worker_->SignalDone(0, 0));
  EXPECT_EQ(worker_->NextLayer(kTimeoutUs).kind, Kind::kAborted);
  ASSERT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed);
  EXPECT_EQ(worker_->epoch(), 2u);
  EXPECT_EQ(worker_->NextLayer(kTimeoutUs).kind, Kind::kAborted);
  device.join();
}

TEST_F(ExchangeTest, ReleaseFreesWaitersAndTheStepStaysReleased) {
  std::thread worker(
      [&] { ASSERT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed); });
  ASSERT_TRUE(Begin(1, rows_).ok());
  worker.join();
  std::thread waiter(
      [&] { EXPECT_EQ(device_->WaitDone(0, 0, kTimeoutUs), WaitResult::kReleased); });
  device_->Release();
  waiter.join();
  EXPECT_EQ(Begin(2, rows_).code(), absl::StatusCode::kUnavailable);
  worker_.reset();
  device_->ResetAfterDeath();
  // A stream thread that comes late must not wait for the next worker.
  EXPECT_EQ(device_->WaitDone(0, 1, kTimeoutUs), WaitResult::kReleased);

  worker_ = Attach();  // takes no part in the step that it finds
  EXPECT_EQ(worker_->WaitForStep(1'000), WorkerSide::StepEvent::kNone);
  std::thread next([&] {
    ASSERT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed);
    ASSERT_EQ(worker_->NextLayer(kTimeoutUs).kind, Kind::kLayer);
    EXPECT_TRUE(worker_->SignalDone(0, 0));
  });
  ASSERT_TRUE(Begin(3, rows_).ok());
  device_->Post(0, 0);
  EXPECT_EQ(device_->WaitDone(0, 0, kTimeoutUs), WaitResult::kDone);
  next.join();
}

TEST_F(ExchangeTest, AReleasedDoneWordIsNotOverwritten) {
  std::thread worker(
      [&] { ASSERT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kArmed); });
  ASSERT_TRUE(Begin(1, rows_).ok());
  worker.join();
  device_->Post(0, 0);
  ASSERT_EQ(worker_->NextLayer(kTimeoutUs).kind, Kind::kLayer);
  device_->Release();
  EXPECT_FALSE(worker_->SignalDone(0, 0));
  EXPECT_EQ(device_->WaitDone(0, 2, kTimeoutUs), WaitResult::kReleased);
}

TEST_F(ExchangeTest, NoWorkerMeansDeadlineAndReleaseEndsTheWait) {
  EXPECT_EQ(device_->BeginStep(1, rows_, {}, 1.0f, 1'000).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(device_->AbortStep(1, 1'000).code(), absl::StatusCode::kDeadlineExceeded);
  std::thread releaser([&] { device_->Release(); });
  EXPECT_EQ(Begin(2, rows_).code(), absl::StatusCode::kUnavailable);
  releaser.join();
}

TEST_F(ExchangeTest, AnAbortedStepThatWasNotSeenIsNeverTaken) {
  EXPECT_EQ(device_->BeginStep(1, rows_, {}, 1.0f, 0).code(), absl::StatusCode::kDeadlineExceeded);
  std::thread device([&] { ASSERT_TRUE(device_->AbortStep(1, kTimeoutUs).ok()); });
  // Either the abort is seen first, or the step is acknowledged, never armed, and then left.
  EXPECT_EQ(worker_->WaitForStep(200'000), WorkerSide::StepEvent::kNone);
  device.join();
}

TEST_F(ExchangeTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(Begin(1, std::vector<SlotRow>(9, rows_[1])).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Begin(1, {{0, table_}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Begin(1, {{385, table_}}).code(), absl::StatusCode::kInvalidArgument);
  const std::vector<int32_t> long_table(33, 0);
  EXPECT_EQ(Begin(1, {{33 * 128, long_table}}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Begin(0, rows_).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ExchangeTest, WorkerRefusesABadBlockId) {
  const std::vector<int32_t> bad = {16};
  absl::Status begun;
  std::thread device([&] { begun = Begin(1, {{5, bad}}); });
  EXPECT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kRefused);
  EXPECT_NE(worker_->refusal().message().find("block id 16"), absl::string_view::npos);
  device.join();
  EXPECT_EQ(begun.code(), absl::StatusCode::kInternal);
}

TEST_F(ExchangeTest, HeartbeatsPassBothWays) {
  const uint64_t before = device_->peer_heartbeat();
  EXPECT_EQ(worker_->WaitForStep(0), WorkerSide::StepEvent::kNone);
  EXPECT_GT(device_->peer_heartbeat(), before);
}

TEST_F(ExchangeTest, InterruptEndsAnIdleWait) {
  std::thread other([&] { worker_->Interrupt(); });
  EXPECT_EQ(worker_->WaitForStep(kTimeoutUs), WorkerSide::StepEvent::kNone);
  other.join();
}

TEST(DeviceSideTest, RefusesARegionLargerThanTheMachine) {
  Geometry geometry = SmallGeometry();
  geometry.num_blocks = 1u << 28;
  EXPECT_EQ(DeviceSide::Create(geometry).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tandem::exchange
