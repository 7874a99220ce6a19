#include "gpu_worker/pipeline/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "gpu_worker/model/decoder.h"
#include "gpu_worker/model/tensor_parallel.h"
#include "gpu_worker/ops/attention.h"
#include "gpu_worker/ops/linear.h"
#include "gpu_worker/ops/token_chooser.h"
#include "gpu_worker/pipeline/step_graphs.h"

namespace tandem::gpu_worker {
namespace {

// Of matrix products, and of decode attention where its context is split.
constexpr uint64_t kWorkspaceBytes = uint64_t{80} << 20;
// Of a captured graph for each layer: some 20 nodes, a KiB of the driver's each. Not measured.
constexpr uint64_t kGraphLayerBytes = uint64_t{20} << 10;
// Of block tables in a captured step; steps with more are launched stage by stage.
constexpr int64_t kMaxGraphTableEntries = int64_t{1} << 20;

uint64_t Unsigned(int64_t value) { return static_cast<uint64_t>(value); }

}  // namespace

MemoryPlan PlanMemory(const PipelineOptions& options, const ModelShape& whole,
                      int32_t max_positions) {
  const int32_t devices = options.tensor_parallel_size;
  const ModelShape shape = model::RankShape(whole, devices);
  const int64_t element = DTypeBytes(options.compute_dtype);
  const int64_t hidden = shape.hidden_size;
  const int64_t inter = shape.intermediate_size;
  const int64_t qkv = shape.q_size() + 2 * shape.kv_size();
  const int64_t layer = hidden * qkv + shape.q_size() * hidden + 3 * hidden * inter;
  const bool has_embedding = devices > 1 || !shape.tied_embeddings;  // apart from the output's
  const int64_t tables =
      (int64_t{shape.vocab_size} / devices + (has_embedding ? shape.vocab_size : 0)) * hidden;
  MemoryPlan plan;
  plan.weights_bytes = Unsigned((layer * shape.num_layers + tables) * element +
                                (2 * int64_t{shape.num_layers} + 1) * hidden * 4);
  const int64_t rows = options.max_num_batched_tokens + options.max_num_batched_tokens / 8 + 64;
  const int32_t logit_rows = model::MaxLogitRows(shape.vocab_size);
  const int64_t row_bytes = (hidden + qkv) * 4 + (hidden + shape.q_size() + 3 * inter) * element;
  // All devices gather those of each.
  const int64_t logit_columns =
      int64_t{shape.vocab_size} + (devices > 1 ? shape.vocab_size / devices : 0);
  plan.activations_bytes =
      Unsigned(rows * row_bytes + int64_t{max_positions} * shape.head_dim * 4 +
               ops::LinearRows(logit_rows) * (hidden * element + logit_columns * 4)) +
      ops::TokenChooserBytes(logit_rows, shape.vocab_size);
  if (options.cpu_kv_bytes > 0) {
    const kv::PoolGeometry cpu{options.cpu_kv_dtype, shape.num_layers, shape.num_kv_heads,
                               shape.head_dim, kv::kCpuBlockTokens};
    plan.staging_bytes = Unsigned(int64_t{max_positions} * 2 * shape.kv_size() * element) +
                         ops::SequenceCopyBytes(cpu);
  }
  plan.workspace_bytes = kWorkspaceBytes;
  if (!options.enforce_eager) {
    plan.graphs_bytes = StepGraphs::kMaxGraphs * Unsigned(shape.num_layers) * kGraphLayerBytes +
                        ops::StepCaptureBytes(GraphLimits(options, max_positions));
  }
  return plan;
}

ops::StepCaptureLimits GraphLimits(const PipelineOptions& options, int32_t max_positions) {
  const int64_t table = (max_positions + options.block_tokens - 1) / options.block_tokens;
  return {StepGraphs::kMaxRows,
          std::min(kMaxGraphTableEntries,
                   table * std::min(options.max_num_seqs, StepGraphs::kMaxRows))};
}

uint64_t PlannedPoolBytes(const MemoryPlan& plan, const device::MemoryInfo& memory,
                          double utilization) {
  const auto usable = static_cast<uint64_t>(static_cast<double>(memory.total_bytes) * utilization);
  const uint64_t used = memory.total_bytes - memory.free_bytes + plan.fixed_bytes();
  return usable > used ? usable - used : 0;
}

absl::Status CheckMemoryPlan(const MemoryPlan& plan, const device::MemoryInfo& memory,
                             double utilization) {
  if (PlannedPoolBytes(plan, memory, utilization) > 0) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the device has no memory for a KV pool: weights take ", plan.weights_bytes,
                   " bytes, activations ", plan.activations_bytes, ", staging ", plan.staging_bytes,
                   ", workspace ", plan.workspace_bytes, ", graphs ", plan.graphs_bytes, "; of ",
                   memory.total_bytes, " bytes ", memory.free_bytes,
                   " are free and --gpu-memory-utilization ", utilization,
                   " may be used; lower --max-num-batched-tokens or --max-model-len, raise "
                   "--gpu-memory-utilization, take a smaller --dtype or model, or a larger GPU"));
}

void LogMemoryPlan(const MemoryPlan& plan, const device::MemoryInfo& memory, double utilization,
                   int32_t rank) {
  base::LogInfo("device memory plan",
                {{"rank", rank},
                 {"weights_bytes", plan.weights_bytes},
                 {"activations_bytes", plan.activations_bytes},
                 {"staging_bytes", plan.staging_bytes},
                 {"workspace_bytes", plan.workspace_bytes},
                 {"graphs_bytes", plan.graphs_bytes},
                 {"kv_pool_bytes", PlannedPoolBytes(plan, memory, utilization)},
                 {"total_bytes", memory.total_bytes},
                 {"free_bytes", memory.free_bytes}});
}

}  // namespace tandem::gpu_worker
