#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/exchange/layout.h"
#include "common/kv_layout/kv_layout.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/pipeline/pipeline_runner.h"

namespace tandem::gpu_worker {

// How large the KV pools of both tiers are.
struct PoolSizes {
  kv::PoolGeometry gpu;  // of one device's heads
  int32_t num_gpu_blocks = 0;
  kv::PoolGeometry cpu;
  int32_t num_cpu_blocks = 0;  // 0: no CPU tier
  int32_t max_model_len = 0;
  int32_t staging_blocks = 0;  // device blocks of one layer, for prefills that end in CPU blocks
};

// What is left after the weights.
struct PoolMemory {
  device::MemoryInfo device;
  device::MemoryInfo host;
  bool is_shared = true;        // the device computes in the host's memory
  uint64_t reserved_bytes = 0;  // of the device, for what is allocated after the pool
};
PoolMemory MemoryBeside(const device::Device& device);

// Pure. InvalidArgument for options out of range, ResourceExhausted where memory lacks; both name
// the flag.
absl::StatusOr<PoolSizes> ComputePoolSizes(const PipelineOptions& options, const ModelShape& shape,
                                           const PoolMemory& memory);

exchange::Geometry ExchangeGeometry(const PipelineOptions& options, const ModelShape& shape,
                                    const PoolSizes& sizes);

}  // namespace tandem::gpu_worker
