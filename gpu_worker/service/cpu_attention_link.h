#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/exchange/device_side.h"

namespace tandem::gpu_worker {

// Keeps one CPU attention worker attached to the exchange: connects, passes the region, attaches,
// watches stream and heartbeat, and attaches again when a new process listens. Owns one thread; the
// callbacks run on it.
class CpuAttentionLink {
 public:
  struct Callbacks {
    // Attached; steps with CPU rows may start. What attention runs on there: its build, instruction
    // set and cores.
    std::function<void(const std::string& description)> on_up;
    std::function<void()> on_down;  // dead or gone: after the peer's socket reached its end
    std::function<void(int32_t num_blocks)> on_blocks_ready;
  };
  struct Options {
    std::string socket_path;               // PATH of gRPC; the region passes on PATH.fd
    bool cores_shared_with_device = true;  // Configure: yield at once
    int64_t heartbeat_timeout_us = 10'000'000;
  };
  static std::unique_ptr<CpuAttentionLink> Start(const Options& options,
                                                 exchange::DeviceSide* exchange,
                                                 Callbacks callbacks);
  virtual ~CpuAttentionLink() = default;  // detaches and joins the thread
  virtual bool up() const = 0;
};

}  // namespace tandem::gpu_worker
