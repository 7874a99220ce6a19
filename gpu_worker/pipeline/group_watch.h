#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "gpu_worker/device/cuda/cuda_group.h"

namespace tandem::gpu_worker {

// Frees the devices of a group whose step does not end: a device that waits for another one has no
// deadline of its own, and the thread that queues its work may stand in the driver, whose queue is
// full. While a step runs, a thread of the watch's looks at the group and at the clock.
class GroupWatch {
 public:
  // `group` outlives this. `timeout_us`: of a step from the start of its queueing on, which is when
  // the one before has ended.
  GroupWatch(device::CudaGroup* group, int64_t timeout_us);
  ~GroupWatch();
  GroupWatch(const GroupWatch&) = delete;
  GroupWatch& operator=(const GroupWatch&) = delete;

  // One step at a time. Begin: before anything of it is queued; End: all devices are idle.
  void Begin();
  void End();

 private:
  void Loop();
  void Look(bool is_late);

  device::CudaGroup* group_;
  const int64_t timeout_us_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t deadline_us_ = 0;  // of the running step; 0: none runs
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tandem::gpu_worker
