#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "common/exchange/device_side.h"
#include "common/exchange/worker_side.h"

namespace tandem::fakes {

// A CPU attention worker as a thread of the test: speaks the real exchange protocol on a second
// mapping of the region and attends with the scalar kernel, one row after the other.
class FakeCpuAttentionWorker {
 public:
  // Attached when the constructor returns. `device` must outlive it.
  explicit FakeCpuAttentionWorker(exchange::DeviceSide* device);
  ~FakeCpuAttentionWorker();  // leaves after the layer it is in

  // From now on: when `layer` of a slot comes up, the worker dies instead (its thread ends, nothing
  // is answered; tell the device side by Release as the link would). -1: never.
  void DieAtLayer(int32_t layer) { die_at_layer_.store(layer); }
  bool dead() const { return dead_.load(); }

  uint64_t steps() const { return steps_.load(); }
  uint64_t layers() const { return layers_.load(); }
  uint64_t rows() const { return rows_.load(); }
  uint64_t refusals() const { return refusals_.load(); }

 private:
  void Run();
  void ServeStep();
  void AttendLayer(int slot, int32_t layer);

  std::unique_ptr<exchange::WorkerSide> side_;
  std::atomic<int32_t> die_at_layer_{-1};
  std::atomic<bool> dead_{false};
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> steps_{0};
  std::atomic<uint64_t> layers_{0};
  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> refusals_{0};
  std::thread thread_;
};

}  // namespace tandem::fakes
