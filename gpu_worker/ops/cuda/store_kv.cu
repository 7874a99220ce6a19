#include "gpu_worker/ops/cuda/numbers.cuh"
#include "gpu_worker/ops/cuda/paged.cuh"

// Rows of K and V to the paged pool. Grid [rows of all runs]; a warp takes a head's K or V row at a
// time.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kStoreThreads = 128;

// What a pool of `kept_as` would give back; types that need no more than the element.
TANDEM_DEVICE float RoundedTo(ElementType kept_as, float value) {
  if (kept_as == ElementType::kBFloat16) {
    return FloatOfBFloat16(BFloat16Of(value));
  }
  return kept_as == ElementType::kFloat8E4M3 ? FloatOfFloat8(Float8Of(value)) : value;
}

// Where a row of K or V comes from and goes to.
struct StoreRow {
  const float* from;
  char* tile;
  int token;  // of the block
  bool is_v;
};

// The `item`th of the row's K and V rows of all heads.
TANDEM_DEVICE StoreRow RowOf(const StoreKvParams& params, const RunRow& row, int item) {
  const QkvParams& qkv = params.qkv;
  const PoolParams& pool = params.pool;
  const int head = item / 2;
  const bool is_v = item % 2 != 0;
  const int64_t heads = qkv.num_q_heads + 2 * qkv.num_kv_heads;
  const int64_t first = qkv.num_q_heads + (is_v ? qkv.num_kv_heads : 0) + head;
  return {qkv.data + (row.row * heads + first) * qkv.head_dim,
          TileOf(pool, BlockOf(params.runs, row, pool.block_tokens), head, is_v),
          row.position % pool.block_tokens, is_v};
}

TANDEM_DEVICE void StoreValue(const PoolParams& pool, const StoreRow& row, int d, float value) {
  const int at = row.is_v ? VElement(pool, row.token, d) : KElement(pool, row.token, d);
  if (pool.dtype == ElementType::kFloat32) {
    Float32::Store(row.tile, at, value);
  } else {
    BFloat16::Store(row.tile, at, value);
  }
}

}  // namespace

TANDEM_KERNEL(store_kv, StoreKvParams, kStoreThreads, kNoBarriers) {
  const RunRow row = FindRow(params.runs, BlockX());
  if (!row.is_there) {
    return;
  }
  const int head_dim = params.pool.head_dim;
  for (int item = WarpIndex(); item < 2 * params.pool.num_kv_heads;
       item += BlockThreads() / kWarpThreads) {
    const StoreRow store = RowOf(params, row, item);
    for (int d = Lane(); d < head_dim; d += kWarpThreads) {
      StoreValue(params.pool, store, d, RoundedTo(params.kept_as, store.from[d]));
    }
  }
}

TANDEM_KERNEL(store_kv_int8, StoreKvParams, kStoreThreads, kBarriers) {
  const RunRow row = FindRow(params.runs, BlockX());
  if (!row.is_there) {
    return;
  }
  const int head_dim = params.pool.head_dim;
  for (int item = WarpIndex(); item < 2 * params.pool.num_kv_heads;
       item += BlockThreads() / kWarpThreads) {
    const StoreRow store = RowOf(params, row, item);
    uint32_t top = 0;
    for (int d = Lane(); d < head_dim; d += kWarpThreads) {
      const uint32_t bits = BitsOf(store.from[d]) & 0x7fffffffu;
      top = bits > top ? bits : top;
    }
    const Int8Scale scale = ScaleOf(WarpMaxBits(top));
    for (int d = Lane(); d < head_dim; d += kWarpThreads) {
      const uint8_t code = Int8Of(MulRounded(store.from[d], scale.inverse));
      StoreValue(params.pool, store, d, MulRounded(FloatOfInt8(code), scale.scale));
    }
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
