#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/exchange/device_side.h"
#include "gpu_worker/service/cpu_attention_link.h"

namespace tandem::cli {

// A CPU attention worker process of its own with an exchange attached; the benchmark plays the
// device.
class CpuWorkerHarness {
 public:
  // Starts the program that lies beside this one, with `flags`, and waits until the whole pool is
  // touched. `cores_shared`: both sides' waits leave the core at once.
  static absl::StatusOr<std::unique_ptr<CpuWorkerHarness>> Start(
      const exchange::Geometry& geometry, const std::vector<std::string>& flags, bool cores_shared);
  ~CpuWorkerHarness();

  // The worker's threads are pinned to the first CPUs; where one is left the calling thread, which
  // plays the device, stays there from now on, and so do threads that it starts.
  static absl::Status MoveToLastCpu();

  exchange::DeviceSide& device() { return *device_; }
  // How often the worker's attention threads went to sleep so far, as the kernel counts it.
  uint64_t AttentionThreadSleeps() const;

 private:
  CpuWorkerHarness() = default;
  absl::Status Spawn(const std::vector<std::string>& flags);
  absl::Status WaitReady();

  std::string socket_;
  pid_t pid_ = -1;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool up_ = false;
  int32_t blocks_ = 0;
  std::unique_ptr<exchange::DeviceSide> device_;
  std::unique_ptr<gpu_worker::CpuAttentionLink> link_;
};

}  // namespace tandem::cli
