#pragma once

namespace tandem::gpu_worker {

// --offload. kNeo is the published policy (arXiv 2411.01142): the baseline.
enum class OffloadPolicy { kAuto, kOff, kUnified, kAsymmetric, kAllCpu, kNeo };

}  // namespace tandem::gpu_worker
