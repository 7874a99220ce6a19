#include "gpu_worker/ops/attention_host.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "gpu_worker/ops/host/workspace.h"

namespace tandem::gpu_worker::ops::host {
namespace {

// Tokens of a pool copy that one thread takes at a time: a whole CPU block.
constexpr int64_t kCopyTokens = 128;

// Rows of K and V as a pool of another type would give them back, in a thread's own memory.
class RoundedRows {
 public:
  RoundedRows(const kv::PoolGeometry& geometry, DType kept_as)
      : kept_as_(kept_as), num_heads_(geometry.num_kv_heads), head_dim_(geometry.head_dim) {}

  kv::TokenRow Of(const float* k, const float* v) {
    if (kept_as_ == DType::kFloat32) {
      return {k, v, DType::kFloat32};
    }
    const int64_t count = int64_t{num_heads_} * head_dim_;
    k_.assign(k, k + count);
    v_.assign(v, v + count);
    kv::RoundRow(kept_as_, num_heads_, head_dim_, k_.data());
    kv::RoundRow(kept_as_, num_heads_, head_dim_, v_.data());
    return {k_.data(), v_.data(), DType::kFloat32};
  }

 private:
  const DType kept_as_;
  const int32_t num_heads_;
  const int32_t head_dim_;
  std::vector<float> k_;
  std::vector<float> v_;
};

}  // namespace

absl::Status StoreKv(const QkvRows& qkv, std::span<const RowRun> runs, const PoolLayer& pool,
                     DType kept_as) {
  const kv::PoolGeometry& geometry = *pool.geometry;
  int64_t total = 0;
  for (const RowRun& run : runs) {
    total += run.num_rows;
  }
#pragma omp parallel if (total > 4)
  {
    RoundedRows rounded(geometry, kept_as == geometry.dtype ? DType::kFloat32 : kept_as);
    for (const RowRun& run : runs) {
#pragma omp for schedule(static) nowait
      for (int32_t i = 0; i < run.num_rows; ++i) {
        const int32_t position = run.start_position + i;
        const int32_t block =
            run.block_table[static_cast<size_t>(position / geometry.block_tokens)];
        kv::StoreToken(geometry, pool.pool + geometry.LayerOffset(block, pool.layer),
                       position % geometry.block_tokens,
                       rounded.Of(qkv.k(run.first_row + i), qkv.v(run.first_row + i)));
      }
    }
  }
  return absl::OkStatus();
}

namespace {

kv::PagedLayer Paged(const PoolLayer& pool, std::span<const int32_t> table) {
  return {pool.geometry, pool.pool, table, pool.layer, pool.first_head};
}

}  // namespace

absl::Status CopyKv(const CopyKvArgs& args) {
  const int64_t end = args.first + args.count;
  const int64_t first_part = args.first / kCopyTokens;
  const int64_t last_part = (end + kCopyTokens - 1) / kCopyTokens;
#pragma omp parallel for schedule(static) if (args.use_team && args.count > kCopyTokens)
  for (int64_t part = first_part; part < last_part; ++part) {
    const int64_t from = std::max(args.first, part * kCopyTokens);
    const int64_t to = std::min(end, (part + 1) * kCopyTokens);
    kv::CopyTokens(Paged(args.from, args.from_table), Paged(args.to, args.to_table), from,
                   to - from);
  }
  return absl::OkStatus();
}

}  // namespace tandem::gpu_worker::ops::host
