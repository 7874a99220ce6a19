#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>

#include "common/exchange/device_side.h"

namespace tandem::gpu_worker::ops::cuda {

// Frees streams that wait for a CPU attention worker which does not answer: a wait on the device
// has no deadline of its own. While an exchange is watched, a thread looks at its doorbells; where
// a posted layer stays without answer for the time given, it releases the step. A worker that is
// known to be dead is released by whoever learns of it.
class JoinWatch {
 public:
  JoinWatch() = default;
  ~JoinWatch();
  JoinWatch(const JoinWatch&) = delete;
  JoinWatch& operator=(const JoinWatch&) = delete;

  // From now on; again: nothing changes. Any thread.
  void Begin(exchange::DeviceSide* exchange, int64_t timeout_us);
  // The streams are past their waits. Whether the exchange was released for being late.
  bool End(exchange::DeviceSide* exchange);

 private:
  struct Watched {
    int64_t timeout_us = 0;
    uint32_t posted[exchange::kNumSlots] = {};
    uint32_t done[exchange::kNumSlots] = {};
    int64_t since_us = 0;  // when the words last changed
    bool late = false;
  };
  void Loop();
  static void Look(exchange::DeviceSide* exchange, int64_t now_us, Watched& watched);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<exchange::DeviceSide*, Watched> watched_;
  bool stop_ = false;
  std::thread thread_;  // runs from the first Begin on
};

// The words that a device writes and waits for, in the region.
uint32_t* PostedWord(const exchange::DeviceSide& exchange, int slot, int poster = 0);
uint32_t* DoneWord(const exchange::DeviceSide& exchange, int slot);

}  // namespace tandem::gpu_worker::ops::cuda
