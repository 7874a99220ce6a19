#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/attention_kernels/paged_decode.h"
#include "gpu_worker/ops/attention_host.h"
#include "gpu_worker/ops/host/workspace.h"

namespace tandem::gpu_worker::ops::host {
namespace {

constexpr int64_t kMinSegmentTokens = 256;  // below, merging costs more than balance gains
constexpr int64_t kTasksPerThread = 4;

// A run of one row's cached tokens for some KV heads.
struct Task {
  int32_t run;
  int64_t first_token;
  int64_t num_tokens;
  int32_t head_begin;
  int32_t head_end;
  int64_t part;  // index of the partial result
};

struct Plan {
  std::vector<Task> tasks;
  std::vector<int64_t> first_part;  // [runs + 1]
};

int64_t ContextOf(const RowRun& run) { return int64_t{run.start_position} + 1; }

// Cuts rows into segments of about equal length, and into KV heads where there are too few.
Plan MakePlan(std::span<const RowRun> runs, int32_t num_kv_heads, int64_t threads) {
  int64_t total = 0;
  for (const RowRun& run : runs) {
    total += ContextOf(run);
  }
  const int64_t target = std::max(kMinSegmentTokens, total / (threads * kTasksPerThread));
  const int64_t segment =
      (target + kv::kSubTileTokens - 1) / kv::kSubTileTokens * kv::kSubTileTokens;
  Plan plan;
  plan.first_part.push_back(0);
  int64_t parts = 0;
  for (const RowRun& run : runs) {
    parts += (ContextOf(run) + segment - 1) / segment;
    plan.first_part.push_back(parts);
  }
  const int64_t wanted_cuts = (threads + parts - 1) / parts;
  const auto head_cuts = static_cast<int32_t>(std::min<int64_t>(num_kv_heads, wanted_cuts));
  for (size_t i = 0; i < runs.size(); ++i) {
    int64_t part = plan.first_part[i];
    for (int64_t first = 0; first < ContextOf(runs[i]); first += segment, ++part) {
      const int64_t tokens = std::min(segment, ContextOf(runs[i]) - first);
      for (int32_t cut = 0; cut < head_cuts; ++cut) {
        plan.tasks.push_back({static_cast<int32_t>(i), first, tokens,
                              num_kv_heads * cut / head_cuts, num_kv_heads * (cut + 1) / head_cuts,
                              part});
      }
    }
  }
  return plan;
}

struct Partials {
  float* out;          // [parts, num_q_heads, head_dim]
  float* log_sum_exp;  // [parts, num_q_heads]
  int64_t out_stride;  // num_q_heads * head_dim
  int32_t num_q_heads;
  float* outs(int64_t part) const { return out + part * out_stride; }
  float* sums(int64_t part) const { return log_sum_exp + part * num_q_heads; }
};

// Result of one row, [num_q_heads, head_dim], left in its first partial.
void MergeRow(const Partials& partials, int64_t first, int64_t count, int32_t head_dim) {
  std::vector<const float*> parts(static_cast<size_t>(count));
  std::vector<float> sums(static_cast<size_t>(count));
  std::vector<float> merged(static_cast<size_t>(head_dim));
  for (int32_t head = 0; head < partials.num_q_heads; ++head) {
    for (int64_t i = 0; i < count; ++i) {
      parts[static_cast<size_t>(i)] = partials.outs(first + i) + int64_t{head} * head_dim;
      sums[static_cast<size_t>(i)] = partials.sums(first + i)[head];
    }
    attention::MergeSegments(parts.data(), sums.data(), static_cast<int32_t>(count), head_dim,
                             merged.data());
    std::memcpy(partials.outs(first) + int64_t{head} * head_dim, merged.data(),
                merged.size() * sizeof(float));
  }
}

attention::SegmentArgs SegmentOf(const AttentionArgs& args, const RowRun& run, const Task& task,
                                 const Partials& partials) {
  attention::SegmentArgs segment;
  segment.pool = args.pool.pool;
  segment.block_table = run.block_table.data();
  segment.layer = args.pool.layer;
  segment.first_token = task.first_token;
  segment.num_tokens = task.num_tokens;
  segment.kv_head_begin = task.head_begin;
  segment.kv_head_end = task.head_end;
  segment.group_size = args.qkv.num_q_heads / args.qkv.num_kv_heads;
  segment.q = args.qkv.q(run.first_row);
  segment.q_dtype = DType::kFloat32;
  segment.scale = args.scale;
  segment.out = partials.outs(task.part);
  segment.log_sum_exp = partials.sums(task.part);
  return segment;
}

}  // namespace

absl::Status DecodeAttention(OpContext& context, const AttentionArgs& args,
                             std::span<const RowRun> runs) {
  Workspace& workspace = context.workspace();
  const auto kernel = attention::GetAttendSegment(workspace.isa(), *args.pool.geometry);
  if (!kernel.ok()) {
    return kernel.status();
  }
  const Plan plan = MakePlan(runs, args.qkv.num_kv_heads, omp_get_max_threads());
  const int64_t width = int64_t{args.qkv.num_q_heads} * args.qkv.head_dim;
  const auto parts = static_cast<size_t>(plan.first_part.back());
  const Partials partials{
      workspace.SharedScratch(0, parts * static_cast<size_t>(width)),
      workspace.SharedScratch(1, parts * static_cast<size_t>(args.qkv.num_q_heads)), width,
      args.qkv.num_q_heads};
  const bool wide = context.compute_dtype() == DType::kFloat32;
  const auto num_tasks = static_cast<int64_t>(plan.tasks.size());
  const auto num_runs = static_cast<int64_t>(runs.size());
#pragma omp parallel
  {
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_tasks; ++i) {
      const Task& task = plan.tasks[static_cast<size_t>(i)];
      const RowRun& run = runs[static_cast<size_t>(task.run)];
      (*kernel)(*args.pool.geometry, SegmentOf(args, run, task, partials));
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < num_runs; ++i) {
      const int64_t first = plan.first_part[static_cast<size_t>(i)];
      const int64_t count = plan.first_part[static_cast<size_t>(i) + 1] - first;
      if (count > 1) {
        MergeRow(partials, first, count, args.qkv.head_dim);
      }
      const int64_t at = runs[static_cast<size_t>(i)].first_row * width;
      if (wide) {
        std::memcpy(reinterpret_cast<float*>(args.out) + at, partials.outs(first),
                    static_cast<size_t>(width) * sizeof(float));
      } else {
        workspace.kernels().float_to_bf16(partials.outs(first), width,
                                          reinterpret_cast<uint16_t*>(args.out) + at);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker::ops::host
