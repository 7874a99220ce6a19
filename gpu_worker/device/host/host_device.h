#pragma once

#include <memory>

#include "gpu_worker/device/device.h"

namespace tandem::gpu_worker::device {

struct HostDeviceOptions {
  int num_threads = 0;  // compute threads; 0: one per core of the process's affinity
};

// The host's cores as a device. The thread of its compute stream is the one thread that calls
// oneDNN and OpenMP (libgomp keeps a team per calling thread), so there is one compute stream at a
// time. Its team's threads are pinned, one per core: left to the kernel, a woken thread lands on
// its waker's core and a team of two runs at half speed (measured on 2 cores).
std::unique_ptr<Device> CreateHostDevice(const HostDeviceOptions& options);

// Of this machine, or of the control group that limits us.
MemoryInfo HostMemory();

// Environment that libgomp reads at exec; main() sets it and starts itself anew when it is missing.
// Threads of the team spin about 50 us between regions, then park: passive waits alone cost a wake
// of 20-40 us per region (SmolLM2, one row: 12 ms per step instead of 5), the default spins for 15
// ms on cores that CPU attention needs.
struct EnvironmentVariable {
  const char* name;
  const char* value;
};
inline constexpr EnvironmentVariable kOpenMpEnvironment[] = {{"OMP_WAIT_POLICY", "passive"},
                                                             {"GOMP_SPINCOUNT", "1000"}};

}  // namespace tandem::gpu_worker::device
