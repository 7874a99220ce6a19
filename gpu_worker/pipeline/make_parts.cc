#include "gpu_worker/pipeline/make_parts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/host/host_device.h"
#include "gpu_worker/device/paced/paced_device.h"
#include "gpu_worker/model/tensor_parallel.h"
#include "gpu_worker/pipeline/memory_plan.h"

namespace tandem::gpu_worker {
namespace {

constexpr std::string_view kPacedPrefix = "paced:";

absl::StatusOr<std::unique_ptr<device::Device>> OpenDevice(const PipelineOptions& options) {
  if (options.device == "host") {
    return device::CreateHostDevice({options.matmul_threads});
  }
  if (options.device == "cuda") {
    return device::CreateCudaDevice();
  }
  if (!options.device.starts_with(kPacedPrefix)) {
    return absl::UnimplementedError(absl::StrCat(
        "--device ", options.device, " is not available; allowed: host, cuda, paced:PROFILE"));
  }
  TANDEM_ASSIGN_OR_RETURN(const DeviceProfile profile,
                          LoadDeviceProfile(options.device.substr(kPacedPrefix.size())));
  return std::make_unique<device::PacedDevice>(profile, &device::RealPaceClock());
}

// Streams and operators of a device that is open.
absl::Status OpenStreams(const PipelineOptions& options, PipelineParts& parts) {
  parts.compute = parts.device->CreateComputeStream();
  if (options.separate_transfer_stream || parts.device->has_copy_engine()) {
    parts.transfer = parts.device->CreateTransferStream();
    parts.mover = parts.device->CreateTransferStream();
    parts.swapper = parts.device->CreateTransferStream();
    if (parts.device->kind() == device::DeviceKind::kCuda) {
      parts.loader = parts.device->CreateTransferStream();
    }
  }
  TANDEM_ASSIGN_OR_RETURN(
      parts.context,
      ops::OpContext::Create(parts.device.get(), parts.compute.get(), options.compute_dtype));
  return absl::OkStatus();
}

// Each device's weights and activations, and what sizes its pool.
absl::Status Load(const PipelineOptions& options, const model_files::ModelFiles& files,
                  PipelineParts& parts) {
  if (parts.rank > 0) {
    ops::ShareCores(parts.num_ranks - 1);
  }
  // Options that cannot work are refused before the weights are read.
  PoolMemory memory = MemoryBeside(*parts.device);
  TANDEM_RETURN_IF_ERROR(ComputePoolSizes(options, files.shape(), memory).status());
  model::DecoderLimits limits;
  if (parts.rank == 0) {
    limits.load_progress = options.load_progress;
  }
  limits.max_rows = options.max_num_batched_tokens;
  limits.max_positions =
      options.max_model_len > 0 ? options.max_model_len : files.shape().max_position;
  if (parts.device->kind() == device::DeviceKind::kCuda) {
    const MemoryPlan plan = PlanMemory(options, files.shape(), limits.max_positions);
    LogMemoryPlan(plan, memory.device, options.gpu_memory_utilization, parts.rank);
    TANDEM_RETURN_IF_ERROR(CheckMemoryPlan(plan, memory.device, options.gpu_memory_utilization));
    memory.reserved_bytes = plan.staging_bytes + plan.workspace_bytes + plan.graphs_bytes;
  }
  TANDEM_ASSIGN_OR_RETURN(parts.decoder, model::Decoder::Load(parts.context.get(), files, limits,
                                                              {parts.rank, parts.num_ranks}));
  if (parts.rank == 0) {
    TANDEM_ASSIGN_OR_RETURN(
        parts.chooser, ops::CreateTokenChooser(parts.context.get(), parts.decoder->max_logit_rows(),
                                               files.shape().vocab_size));
  }
  memory.device = parts.device->memory();
  memory.host = device::HostMemory();
  TANDEM_ASSIGN_OR_RETURN(parts.sizes, ComputePoolSizes(options, files.shape(), memory));
  parts.cpu_wait_timeout_us = options.cpu_wait_timeout_us;
  parts.attention_scale = 1.0f / std::sqrt(static_cast<float>(files.shape().head_dim));
  return absl::OkStatus();
}

// What a sequence's move takes at most of a CPU attention worker's blocks: this device's heads.
kv::PoolGeometry MovedBlocks(const PoolSizes& sizes) {
  kv::PoolGeometry moved = sizes.cpu;
  moved.num_kv_heads = sizes.gpu.num_kv_heads;
  return moved;
}

absl::Status AllocatePools(PipelineParts& parts) {
  TANDEM_ASSIGN_OR_RETURN(parts.gpu_pool,
                          parts.device->Allocate(static_cast<size_t>(parts.sizes.num_gpu_blocks) *
                                                     parts.sizes.gpu.block_bytes(),
                                                 "the device KV pool"));
  if (parts.sizes.num_cpu_blocks == 0) {
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(ops::PrepareSequenceCopies(*parts.context, MovedBlocks(parts.sizes)));
  parts.staging_geometry = parts.sizes.gpu;
  parts.staging_geometry.num_layers = 1;
  parts.staging_table.resize(static_cast<size_t>(parts.sizes.staging_blocks));
  std::iota(parts.staging_table.begin(), parts.staging_table.end(), 0);
  TANDEM_ASSIGN_OR_RETURN(
      parts.staging,
      parts.device->Allocate(parts.staging_table.size() * parts.staging_geometry.block_bytes(),
                             "the staging area of CPU prefills"));
  return absl::OkStatus();
}

absl::Status PrepareGraphs(const PipelineOptions& options, PipelineParts& parts) {
  if (options.enforce_eager || parts.transfer == nullptr) {
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ops::StepCapture> capture,
                          ops::CreateStepCapture(parts.context.get(), {parts.transfer.get()},
                                                 GraphLimits(options, parts.sizes.max_model_len)));
  if (capture != nullptr) {
    const ModelShape& shape = parts.decoder->shape();
    TANDEM_RETURN_IF_ERROR(ops::PrepareDecodes(*parts.context, shape.num_q_heads, shape.head_dim));
    parts.graphs = std::make_unique<StepGraphs>(std::move(capture), parts.decoder->row_capacity());
  }
  return absl::OkStatus();
}

absl::Status OpenDevices(const PipelineOptions& options, PipelineRanks& ranks) {
  const int32_t size = options.tensor_parallel_size;
  if (size > 1) {
    TANDEM_ASSIGN_OR_RETURN(ranks.group, device::CudaGroup::Create(size));
  }
  for (int32_t rank = 0; rank < size; ++rank) {
    PipelineParts& parts = ranks.parts.emplace_back();
    parts.rank = rank;
    parts.num_ranks = size;
    if (ranks.group != nullptr) {
      parts.device = ranks.group->TakeDevice(rank);
    } else {
      TANDEM_ASSIGN_OR_RETURN(parts.device, OpenDevice(options));
    }
    TANDEM_RETURN_IF_ERROR(OpenStreams(options, parts));
  }
  return absl::OkStatus();
}

// Blocks of one id are parts of one block: all devices have the same number.
void AgreeOnBlocks(PipelineRanks& ranks) {
  int32_t fewest = ranks.parts[0].sizes.num_gpu_blocks;
  for (const PipelineParts& parts : ranks.parts) {
    fewest = std::min(fewest, parts.sizes.num_gpu_blocks);
  }
  for (PipelineParts& parts : ranks.parts) {
    parts.sizes.num_gpu_blocks = fewest;
  }
}

absl::Status MakeCpuTier(const PipelineOptions& options, const ModelShape& shape,
                         PipelineRanks& ranks) {
  PipelineParts& first = ranks.parts[0];
  if (first.sizes.num_cpu_blocks == 0) {
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(
      first.cpu_tier,
      CpuTier::Create(ExchangeGeometry(options, shape, first.sizes),
                      options.num_cpu_attention_workers, options.tensor_parallel_size));
  for (PipelineParts& parts : ranks.parts) {
    parts.cpu_tier = first.cpu_tier;
  }
  first.registrations.resize(first.cpu_tier->shards().size());
  for (size_t i = 0; i < first.registrations.size(); ++i) {
    // Bells and slots; the pool follows when the worker has touched it.
    TANDEM_RETURN_IF_ERROR(
        RegisterRegion(ranks, i, first.cpu_tier->shards()[i].exchange->header().pool_offset));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PipelineRanks> MakePipelineRanks(const PipelineOptions& options,
                                                const model_files::ModelFiles& files,
                                                RankTeam& team) {
  TANDEM_RETURN_IF_ERROR(model::CheckTensorParallel(files.shape(), options.tensor_parallel_size));
  if (options.tensor_parallel_size > 1 && options.device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--tensor-parallel-size: ", options.tensor_parallel_size, " on device ",
                     options.device, "; allowed: 1, more on cuda"));
  }
  PipelineRanks ranks;
  TANDEM_RETURN_IF_ERROR(OpenDevices(options, ranks));
  TANDEM_RETURN_IF_ERROR(team.Run(
      [&](int32_t rank) { return Load(options, files, ranks.parts[static_cast<size_t>(rank)]); }));
  AgreeOnBlocks(ranks);
  for (PipelineParts& parts : ranks.parts) {
    TANDEM_RETURN_IF_ERROR(AllocatePools(parts));
    TANDEM_RETURN_IF_ERROR(PrepareGraphs(options, parts));
    if (ranks.group != nullptr) {
      parts.decoder->SetCommunicator(&ranks.group->communicator(parts.rank));
    }
  }
  TANDEM_RETURN_IF_ERROR(MakeCpuTier(options, files.shape(), ranks));
  return ranks;
}

absl::Status RegisterRegion(PipelineRanks& ranks, size_t shard, uint64_t bytes) {
  PipelineParts& parts = ranks.parts[0];
  const shm::Region& region = parts.cpu_tier->shards()[shard].exchange->region();
  RegionRegistrations& registered = parts.registrations[shard];
  const uint64_t pages = (std::min(bytes, region.size()) + exchange::kHugePage - 1) /
                         exchange::kHugePage * exchange::kHugePage;
  const uint64_t end = std::min(pages, region.size());
  if (end <= registered.bytes) {
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<device::Registration> part,
      parts.device->Register(region.data() + registered.bytes, end - registered.bytes));
  registered.parts.push_back(std::move(part));
  registered.bytes = end;
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker
