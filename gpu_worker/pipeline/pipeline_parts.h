#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "gpu_worker/device/communicator.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/decoder.h"
#include "gpu_worker/ops/op.h"
#include "gpu_worker/ops/token_chooser.h"
#include "gpu_worker/pipeline/cpu_tier.h"
#include "gpu_worker/pipeline/pool_sizes.h"
#include "gpu_worker/pipeline/step_graphs.h"

namespace tandem::gpu_worker {

// What the device may reach of a CPU attention worker's region.
struct RegionRegistrations {
  std::vector<std::unique_ptr<device::Registration>> parts;
  uint64_t bytes = 0;  // from the region's start, all of them
};

// What a pipeline owns on one of its devices. Members are destroyed last to first: the streams must
// be idle then.
struct PipelineParts {
  int32_t rank = 0;  // of num_ranks devices that share out the model; the first one samples
  int32_t num_ranks = 1;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<device::Stream> compute;
  // Null: their work takes its turn on `compute`; all or none.
  std::unique_ptr<device::Stream> transfer;  // rows of the CPU tier, which somebody waits for
  std::unique_ptr<device::Stream> mover;     // what moves out of the staging area
  std::unique_ptr<device::Stream> swapper;   // sequences that move to the CPU pool
  std::unique_ptr<device::Stream> loader;    // and back
  std::unique_ptr<ops::OpContext> context;
  std::unique_ptr<model::Decoder> decoder;
  std::unique_ptr<ops::TokenChooser> chooser;  // null: logits are the host's, which chooses
  PoolSizes sizes;                             // of the device pool: this device's heads
  std::unique_ptr<device::Buffer> gpu_pool;    // of sizes.gpu
  kv::PoolGeometry staging_geometry;           // one layer, else as sizes.gpu
  std::unique_ptr<device::Buffer> staging;
  std::vector<int32_t> staging_table;              // all of it
  std::shared_ptr<CpuTier> cpu_tier;               // of all devices; null: there is none
  std::vector<RegionRegistrations> registrations;  // of its regions, by the first device for all
  std::unique_ptr<StepGraphs> graphs;              // null: every step is launched stage by stage
  int64_t cpu_wait_timeout_us = 0;
  float attention_scale = 1.0f;

  ops::PoolLayer GpuLayer(int32_t layer) const { return {&sizes.gpu, gpu_pool->data(), layer}; }
  static ops::PoolLayer CpuLayer(const CpuShard& shard, int32_t layer) {
    return {&shard.pool, shard.exchange->pool(), layer};
  }
  // The heads that this device shares with a CPU attention worker.
  HeadWindow WindowOf(const CpuShard& shard) const {
    return gpu_worker::WindowOf(shard, rank, sizes.gpu.num_kv_heads);
  }
  ops::PoolLayer StagingLayer() const { return {&staging_geometry, staging->data(), 0}; }
};

}  // namespace tandem::gpu_worker
