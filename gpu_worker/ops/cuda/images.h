#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tandem::gpu_worker::ops::cuda {

// The images of this build's kernels, by nvcc; none in a build for tests alone.
std::vector<std::span<const std::byte>> KernelImages();

}  // namespace tandem::gpu_worker::ops::cuda
