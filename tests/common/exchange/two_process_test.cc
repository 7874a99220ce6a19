// Both sides in processes of their own, with a death in the middle.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "common/exchange/device_side.h"
#include "common/exchange/worker_side.h"
#include "tests/common/exchange/test_geometry.h"

namespace tandem::exchange {
namespace {

constexpr int64_t kTimeoutUs = 30'000'000;

// The child: answers every layer with epoch * 100 + layer, for ever.
[[noreturn]] void Serve(const DeviceSide& device) {
  absl::StatusOr<shm::Region> region =
      shm::Region::Map(dup(device.region().fd()), device.region().size());
  absl::StatusOr<std::unique_ptr<WorkerSide>> side = WorkerSide::Attach(*std::move(region));
  if (!side.ok()) {
    _exit(1);
  }
  WorkerSide& worker = **side;
  while (true) {
    if (worker.WaitForStep(kTimeoutUs) != WorkerSide::StepEvent::kArmed) {
      continue;
    }
    WorkerSide::LayerWork work = worker.NextLayer(kTimeoutUs);
    for (; work.kind == WorkerSide::LayerWork::Kind::kLayer; work = worker.NextLayer(kTimeoutUs)) {
      const uint64_t answer = worker.epoch() * 100 + static_cast<uint64_t>(work.layer);
      std::memcpy(worker.o(work.slot), &answer, sizeof(answer));
      worker.SignalDone(work.slot, work.layer);
    }
  }
}

pid_t StartChild(const DeviceSide& device) {
  const uint64_t beat = device.peer_heartbeat();
  const pid_t child = fork();
  if (child == 0) {
    Serve(device);
  }
  // The first beat comes when it is attached and waits for steps.
  while (device.peer_heartbeat() == beat && waitpid(child, nullptr, WNOHANG) == 0) {
    sched_yield();
  }
  return child;
}

void Kill(pid_t child) {
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST(TwoProcesses, StepsAnswersAndADeath) {
  std::unique_ptr<DeviceSide> device = DeviceSide::Create(SmallGeometry()).value();
  const std::vector<int32_t> table = {1, 2};
  const std::vector<SlotRow> rows = {{200, table}};
  pid_t child = StartChild(*device);
  uint64_t epoch = 0;
  for (int round = 0; round < 2; ++round) {
    for (int step = 0; step < 100; ++step) {
      ASSERT_TRUE(device->BeginStep(++epoch, rows, rows, 1.0f, kTimeoutUs).ok());
      for (int32_t layer = 0; layer < 3; ++layer) {
        for (int slot = 0; slot < 2; ++slot) {
          device->Post(slot, layer);
        }
        for (int slot = 0; slot < 2; ++slot) {
          ASSERT_EQ(device->WaitDone(slot, layer, kTimeoutUs), WaitResult::kDone);
          uint64_t answer = 0;
          std::memcpy(&answer, device->o(slot), sizeof(answer));
          ASSERT_EQ(answer, epoch * 100 + static_cast<uint64_t>(layer));
        }
      }
    }
    // Dies in the middle of a step; the next process takes no part in what it left.
    ASSERT_TRUE(device->BeginStep(++epoch, rows, {}, 1.0f, kTimeoutUs).ok());
    Kill(child);
    device->Post(0, 0);
    EXPECT_EQ(device->WaitDone(0, 0, 10'000), WaitResult::kTimedOut);
    device->Release();
    EXPECT_EQ(device->WaitDone(0, 0, kTimeoutUs), WaitResult::kReleased);
    device->ResetAfterDeath();
    child = StartChild(*device);
  }
  Kill(child);
}

}  // namespace
}  // namespace tandem::exchange
