#include "gpu_worker/pipeline/pool_sizes.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/host/host_device.h"

namespace tandem::gpu_worker {
namespace {

// On the host device both pools and everything else share one memory: take a modest part.
constexpr double kHostPoolShare = 0.2;
constexpr uint64_t kHostPoolMaxBytes = uint64_t{4} << 30;
// The CPU pool becomes usable extent by extent while a worker touches it.
constexpr uint64_t kExtentBytes = uint64_t{64} << 20;

int64_t BlocksFor(int64_t tokens, int32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

// Blocks that max_num_seqs sequences of full length hold.
int64_t MostUseful(const PipelineOptions& options, const PoolSizes& sizes, int32_t block_tokens) {
  const int64_t blocks =
      int64_t{options.max_num_seqs} * BlocksFor(sizes.max_model_len, block_tokens);
  return std::min<int64_t>(blocks, std::numeric_limits<int32_t>::max());
}

absl::Status CheckOptions(const PipelineOptions& options, const ModelShape& shape) {
  const int32_t block = options.block_tokens;
  if (block != 16 && block != 32 && block != 64 && block != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("--block-size is ", block, "; allowed: 16, 32, 64, 128"));
  }
  if (options.max_num_seqs < 1 || options.max_num_batched_tokens < 1) {
    return absl::InvalidArgumentError(
        "--max-num-seqs and --max-num-batched-tokens must be positive");
  }
  if (options.max_model_len < 0 || options.max_model_len > shape.max_position) {
    return absl::InvalidArgumentError(absl::StrCat("--max-model-len is ", options.max_model_len,
                                                   "; the model allows 1 to ", shape.max_position));
  }
  return absl::OkStatus();
}

// Bytes that the device pool may take when nobody says how many blocks it has.
uint64_t GpuPoolBytes(const PipelineOptions& options, const PoolMemory& memory) {
  const device::MemoryInfo& device = memory.device;
  if (memory.is_shared) {
    const auto share =
        static_cast<uint64_t>(static_cast<double>(device.free_bytes) * kHostPoolShare);
    return std::min(share, kHostPoolMaxBytes);
  }
  const auto usable = static_cast<uint64_t>(static_cast<double>(device.total_bytes) *
                                            options.gpu_memory_utilization);
  const uint64_t used = device.total_bytes - device.free_bytes + memory.reserved_bytes;
  return usable > used ? usable - used : 0;
}

absl::Status SizeGpuPool(const PipelineOptions& options, const PoolMemory& memory,
                         PoolSizes* sizes) {
  const auto block_bytes = static_cast<uint64_t>(sizes->gpu.block_bytes());
  if (options.num_gpu_blocks > 0) {
    if (static_cast<uint64_t>(options.num_gpu_blocks) > memory.device.free_bytes / block_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "--num-gpu-blocks-override ", options.num_gpu_blocks, " blocks of ", block_bytes,
          " bytes; free memory after the weights is ", memory.device.free_bytes, " bytes"));
    }
    sizes->num_gpu_blocks = options.num_gpu_blocks;
    return absl::OkStatus();
  }
  const int64_t blocks = std::min(static_cast<int64_t>(GpuPoolBytes(options, memory) / block_bytes),
                                  MostUseful(options, *sizes, options.block_tokens));
  if (blocks < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a device KV pool: ", memory.device.free_bytes,
                     " bytes are free after the weights, a block takes ", block_bytes));
  }
  sizes->num_gpu_blocks = static_cast<int32_t>(blocks);
  return absl::OkStatus();
}

absl::Status SizeCpuPool(const PipelineOptions& options, const PoolMemory& memory,
                         PoolSizes* sizes) {
  TANDEM_RETURN_IF_ERROR(kv::ValidateGeometry(sizes->cpu));
  const auto block_bytes = static_cast<uint64_t>(sizes->cpu.block_bytes());
  if (options.cpu_kv_bytes > memory.host.free_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("--cpu-kv-size ", options.cpu_kv_bytes,
                                                     " bytes; free host memory is ",
                                                     memory.host.free_bytes, " bytes"));
  }
  const int64_t blocks = std::min(static_cast<int64_t>(options.cpu_kv_bytes / block_bytes),
                                  MostUseful(options, *sizes, kv::kCpuBlockTokens));
  if (blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--cpu-kv-size ", options.cpu_kv_bytes,
                                                   " bytes; one block takes ", block_bytes,
                                                   "; 0 switches the CPU tier off"));
  }
  sizes->num_cpu_blocks = static_cast<int32_t>(blocks);
  const int64_t staged = std::min<int64_t>(sizes->max_model_len, blocks * kv::kCpuBlockTokens);
  sizes->staging_blocks = static_cast<int32_t>(BlocksFor(staged, options.block_tokens));
  return absl::OkStatus();
}

}  // namespace

PoolMemory MemoryBeside(const device::Device& device) {
  return {device.memory(), device::HostMemory(), device.kind() == device::DeviceKind::kHost};
}

absl::StatusOr<PoolSizes> ComputePoolSizes(const PipelineOptions& options, const ModelShape& shape,
                                           const PoolMemory& memory) {
  TANDEM_RETURN_IF_ERROR(CheckOptions(options, shape));
  PoolSizes sizes;
  sizes.max_model_len = options.max_model_len > 0 ? options.max_model_len : shape.max_position;
  sizes.gpu = {kv::DefaultPoolType(options.compute_dtype), shape.num_layers,
               shape.num_kv_heads / options.tensor_parallel_size, shape.head_dim,
               options.block_tokens};
  sizes.cpu = {options.cpu_kv_dtype, shape.num_layers, shape.num_kv_heads, shape.head_dim,
               kv::kCpuBlockTokens};
  TANDEM_RETURN_IF_ERROR(kv::ValidateGeometry(sizes.gpu));
  TANDEM_RETURN_IF_ERROR(SizeGpuPool(options, memory, &sizes));
  if (options.cpu_kv_bytes > 0) {
    TANDEM_RETURN_IF_ERROR(SizeCpuPool(options, memory, &sizes));
  }
  return sizes;
}

exchange::Geometry ExchangeGeometry(const PipelineOptions& options, const ModelShape& shape,
                                    const PoolSizes& sizes) {
  exchange::Geometry geometry{};
  geometry.num_layers = static_cast<uint32_t>(shape.num_layers);
  geometry.num_q_heads = static_cast<uint32_t>(shape.num_q_heads);
  geometry.num_kv_heads = static_cast<uint32_t>(shape.num_kv_heads);
  geometry.head_dim = static_cast<uint32_t>(shape.head_dim);
  geometry.compute_dtype = static_cast<uint32_t>(options.compute_dtype);
  geometry.kv_dtype = static_cast<uint32_t>(options.cpu_kv_dtype);
  geometry.block_tokens = kv::kCpuBlockTokens;
  geometry.max_rows = static_cast<uint32_t>(options.max_num_seqs);
  geometry.num_blocks = static_cast<uint64_t>(sizes.num_cpu_blocks);
  // Each block is in one sequence's table at most.
  geometry.max_table_entries = static_cast<uint64_t>(sizes.num_cpu_blocks);
  geometry.extent_bytes = kExtentBytes;
  geometry.device_wakes = options.device == "cuda" ? 0 : 1;
  return geometry;
}

}  // namespace tandem::gpu_worker
