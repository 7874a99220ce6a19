#pragma once

namespace tandem::gpu_worker {

// --offload.
enum class OffloadPolicy { kAuto, kOff, kUnified, kAsymmetric, kAllCpu };

}  // namespace tandem::gpu_worker
