#include "gpu_worker/ops/attention_host.h"

#include <omp.h>

#include <algorithm>

#include "gpu_worker/ops/host/workspace.h"

namespace tandem::gpu_worker::ops::host {
namespace {

// Tokens of a pool copy that one thread takes at a time: a whole CPU block.
constexpr int64_t kCopyTokens = 128;

}  // namespace

absl::Status StoreKv(const QkvRows& qkv, std::span<const RowRun> runs, const PoolLayer& pool) {
  const kv::PoolGeometry& geometry = *pool.geometry;
  int64_t total = 0;
  for (const RowRun& run : runs) {
    total += run.num_rows;
  }
#pragma omp parallel if (total > 4)
  for (const RowRun& run : runs) {
#pragma omp for schedule(static) nowait
    for (int32_t i = 0; i < run.num_rows; ++i) {
      const int32_t position = run.start_position + i;
      const int32_t block = run.block_table[static_cast<size_t>(position / geometry.block_tokens)];
      kv::StoreToken(geometry, pool.pool + geometry.LayerOffset(block, pool.layer),
                     position % geometry.block_tokens,
                     {qkv.k(run.first_row + i), qkv.v(run.first_row + i), DType::kFloat32});
    }
  }
  return absl::OkStatus();
}

absl::Status CopyKv(const CopyKvArgs& args) {
  const int64_t end = args.first + args.count;
  const int64_t first_part = args.first / kCopyTokens;
  const int64_t last_part = (end + kCopyTokens - 1) / kCopyTokens;
#pragma omp parallel for schedule(static) if (args.use_team && args.count > kCopyTokens)
  for (int64_t part = first_part; part < last_part; ++part) {
    const int64_t from = std::max(args.first, part * kCopyTokens);
    const int64_t to = std::min(end, (part + 1) * kCopyTokens);
    kv::CopyTokens({args.from.geometry, args.from.pool, args.from_table, args.from.layer},
                   {args.to.geometry, args.to.pool, args.to_table, args.to.layer}, from, to - from);
  }
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker::ops::host
