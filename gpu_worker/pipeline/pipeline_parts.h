#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu_worker/device/device.h"
#include "gpu_worker/model/decoder.h"
#include "gpu_worker/ops/op.h"
#include "gpu_worker/ops/token_chooser.h"
#include "gpu_worker/pipeline/cpu_tier.h"
#include "gpu_worker/pipeline/pool_sizes.h"

namespace tandem::gpu_worker {

// What the device may reach of a CPU attention worker's region.
struct RegionRegistrations {
  std::vector<std::unique_ptr<device::Registration>> parts;
  uint64_t bytes = 0;  // from the region's start, all of them
};

// What a pipeline owns on its device. Members are destroyed last to first: the streams must be idle
// then.
struct PipelineParts {
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> compute;
  std::unique_ptr<device::Stream> transfer;  // null: transfers take their turn on `compute`
  std::unique_ptr<device::Stream> mover;     // null: so does what moves out of the staging area
  std::unique_ptr<ops::OpContext> context;
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<ops::TokenChooser> chooser;  // null: logits are the host's, which chooses
  PoolSizes sizes;
  std::unique_ptr<device::Buffer> gpu_pool;  // of sizes.gpu
  kv::PoolGeometry staging_geometry;         // one layer, else as sizes.gpu
  std::unique_ptr<device::Buffer> staging;
  std::vector<int32_t> staging_table;              // all of it
  std::unique_ptr<CpuTier> cpu_tier;               // null: there is none
  std::vector<RegionRegistrations> registrations;  // of its regions
  int64_t cpu_wait_timeout_us = 0;
  float attention_scale = 1.0f;

  ops::PoolLayer GpuLayer(int32_t layer) const { return {&sizes.gpu, gpu_pool->data(), layer}; }
  static ops::PoolLayer CpuLayer(const CpuShard& shard, int32_t layer) {
    return {&shard.pool, shard.exchange->pool(), layer};
  }
  ops::PoolLayer StagingLayer() const { return {&staging_geometry, staging->data(), 0}; }
};

}  // namespace tandem::gpu_worker
