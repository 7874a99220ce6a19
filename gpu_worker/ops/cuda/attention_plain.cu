#include "gpu_worker/ops/cuda/numbers.cuh"
#include "gpu_worker/ops/cuda/paged.cuh"

// Causal attention without matrix instructions, in float32: for float32 pools, and for bfloat16
// pools where a device has no room for the other kernels. Prefill and decode alike. Grid [tiles of
// kQueries query heads of the longest run, KV heads, runs]; the block's warps share out the tokens.
// Dynamic shared memory: SharedFloats.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kPlainThreads = 128;
constexpr int kWarps = kPlainThreads / kWarpThreads;
constexpr int kQueries = 8;
constexpr int kMaxColumns = kMaxHeadDim / kWarpThreads;  // of a row that a lane sums up
constexpr int kScoreStride = kWarpThreads + 1;
constexpr float kLog2E = 1.44269504088896341f;

template <typename Type>
TANDEM_DEVICE float LoadK(const PoolParams& pool, const char* tile, int t, int d) {
  return Type::Load(tile, KElement(pool, t, d));
}

// A tile of query heads: query i is row (first + i) / group of the run, query head (first + i) %
// group of the KV head's.
struct QueryTile {
  RunParams run;
  int first;
  int count;
  int group;
  TANDEM_METHOD int RowOf(int i) const { return (first + i) / group; }
  // Tokens that query i attends to.
  TANDEM_METHOD int Visible(int i) const {
    return i < count ? run.start_position + RowOf(i) + 1 : 0;
  }
  TANDEM_METHOD int64_t Row(int i) const { return int64_t{run.first_row} + RowOf(i); }
  TANDEM_METHOD int Head(int i) const { return BlockY() * group + (first + i) % group; }
};

struct PlainShared {
  Shared<float> q;            // [kQueries, head_dim], scaled
  Shared<float> scores;       // [kWarps, kQueries, kScoreStride]
  Shared<float> corrections;  // [kWarps, kQueries]
  Shared<float> max;          // [kWarps, kQueries]
  Shared<float> sum;          // [kWarps, kQueries]
  Shared<float> out;          // [kWarps, kQueries, head_dim]
};

TANDEM_DEVICE PlainShared SharedParts(int head_dim) {
  constexpr int kRows = kWarps * kQueries;
  int at = 0;
  const auto take = [&at](int count) {
    const Shared<float> part = DynamicShared<float>(at * 4, count);
    at += count;
    return part;
  };
  return {
      take(kQueries * head_dim), take(kRows * kScoreStride), take(kRows), take(kRows), take(kRows),
      take(kRows * head_dim)};
}

// Running softmax of a warp's share of the tokens. Lane l keeps query l / 4's maximum and sum, and
// columns l, l + 32, ... of every query's weighted sum.
struct PlainState {
  float max = FloatOf(0xff800000u);
  float sum = 0.0f;
  float out[kQueries][kMaxColumns] = {};
};

// Scores of tokens [base, base + 32), a lane each.
template <typename Type>
TANDEM_DEVICE void Scores(const AttentionParams& params, const QueryTile& tile,
                          const PlainShared& shared, int base) {
  const PoolParams& pool = params.pool;
  const int token = base + Lane();
  float scores[kQueries] = {};
  if (token < tile.Visible(tile.count - 1)) {
    const int block = params.runs.tables[tile.run.table_begin + token / pool.block_tokens];
    const char* k_tile = TileOf(pool, block, BlockY(), false);
    for (int d = 0; d < pool.head_dim; d += 4) {
      float k[4];
      TANDEM_UNROLL
      for (int n = 0; n < 4; ++n) {
        k[n] = LoadK<Type>(pool, k_tile, token % pool.block_tokens, d + n);
      }
      TANDEM_UNROLL
      for (int i = 0; i < kQueries; ++i) {
        const auto q = shared.q.template LoadAs<Words4>(i * pool.head_dim + d);
        scores[i] +=
            FloatOf(q.x) * k[0] + FloatOf(q.y) * k[1] + FloatOf(q.z) * k[2] + FloatOf(q.w) * k[3];
      }
    }
  }
  TANDEM_UNROLL
  for (int i = 0; i < kQueries; ++i) {
    shared.scores.Store((WarpIndex() * kQueries + i) * kScoreStride + Lane(),
                        token < tile.Visible(i) ? scores[i] : FloatOf(0xff800000u));
  }
}

// Turns scores into weights; four lanes work on a query.
TANDEM_DEVICE void Weights(const PlainShared& shared, PlainState& state) {
  constexpr int kPart = kWarpThreads / 4;
  const int query = WarpIndex() * kQueries + Lane() / 4;
  const int first = query * kScoreStride + Lane() % 4 * kPart;
  float max = state.max;
  for (int i = 0; i < kPart; ++i) {
    max = Max(max, shared.scores.Load(first + i));
  }
  max = Max(max, ShuffleXor(max, 1));
  max = Max(max, ShuffleXor(max, 2));
  const float base = max == FloatOf(0xff800000u) ? 0.0f : max;  // nothing is visible yet
  const float correction = Exp2(state.max - base);
  float sum = 0.0f;
  for (int i = 0; i < kPart; ++i) {
    const float weight = Exp2(shared.scores.Load(first + i) - base);
    shared.scores.Store(first + i, weight);
    sum += weight;
  }
  sum += ShuffleXor(sum, 1);
  sum += ShuffleXor(sum, 2);
  state.max = max;
  state.sum = state.sum * correction + sum;
  if (Lane() % 4 == 0) {
    shared.corrections.Store(query, correction);
  }
}

template <typename Type>
TANDEM_DEVICE void AddValues(const AttentionParams& params, const QueryTile& tile,
                             const PlainShared& shared, int base, PlainState& state) {
  const PoolParams& pool = params.pool;
  const int first_query = WarpIndex() * kQueries;
  const int columns = (pool.head_dim + kWarpThreads - 1) / kWarpThreads;
  TANDEM_UNROLL
  for (int i = 0; i < kQueries; ++i) {
    const float correction = shared.corrections.Load(first_query + i);
    TANDEM_UNROLL
    for (int c = 0; c < kMaxColumns; ++c) {
      state.out[i][c] *= correction;
    }
  }
  const int left = tile.Visible(tile.count - 1) - base;
  for (int t = 0; t < kWarpThreads && t < left; ++t) {
    const int block = params.runs.tables[tile.run.table_begin + (base + t) / pool.block_tokens];
    const char* v_tile = TileOf(pool, block, BlockY(), true);
    const int in_block = (base + t) % pool.block_tokens;
    float weights[kQueries];
    TANDEM_UNROLL
    for (int i = 0; i < kQueries; ++i) {
      weights[i] = shared.scores.Load((first_query + i) * kScoreStride + t);
    }
    TANDEM_UNROLL
    for (int c = 0; c < kMaxColumns; ++c) {
      const int d = Lane() + c * kWarpThreads;
      if (c < columns && d < pool.head_dim) {
        const float v = Type::Load(v_tile, VElement(pool, in_block, d));
        TANDEM_UNROLL
        for (int i = 0; i < kQueries; ++i) {
          state.out[i][c] += weights[i] * v;
        }
      }
    }
  }
}

TANDEM_DEVICE void LeaveState(const PlainShared& shared, const PlainState& state, int head_dim) {
  if (Lane() % 4 == 0) {
    shared.max.Store(WarpIndex() * kQueries + Lane() / 4, state.max);
    shared.sum.Store(WarpIndex() * kQueries + Lane() / 4, state.sum);
  }
  TANDEM_UNROLL
  for (int i = 0; i < kQueries; ++i) {
    TANDEM_UNROLL
    for (int c = 0; c < kMaxColumns; ++c) {
      const int d = Lane() + c * kWarpThreads;
      if (d < head_dim) {
        shared.out.Store((WarpIndex() * kQueries + i) * head_dim + d, state.out[i][c]);
      }
    }
  }
}

// Merges the warps' shares.
TANDEM_DEVICE void StoreOut(const AttentionParams& params, const QueryTile& tile,
                            const PlainShared& shared) {
  const int head_dim = params.pool.head_dim;
  for (int i = 0; i < tile.count; ++i) {
    float max = shared.max.Load(i);
    for (int warp = 1; warp < kWarps; ++warp) {
      max = Max(max, shared.max.Load(warp * kQueries + i));
    }
    float sum = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) {
      sum +=
          shared.sum.Load(warp * kQueries + i) * Exp2(shared.max.Load(warp * kQueries + i) - max);
    }
    const int64_t to = (tile.Row(i) * params.qkv.num_q_heads + tile.Head(i)) * head_dim;
    for (int d = ThreadIndex(); d < head_dim; d += kPlainThreads) {
      float value = 0.0f;
      for (int warp = 0; warp < kWarps; ++warp) {
        const int row = warp * kQueries + i;
        value += shared.out.Load(row * head_dim + d) * Exp2(shared.max.Load(row) - max);
      }
      StoreElement(params.out_type, params.out, to + d, value / sum);
    }
  }
}

template <typename Type>
TANDEM_DEVICE void AttendPlainly(const AttentionParams& params) {
  const int head_dim = params.pool.head_dim;
  QueryTile tile;
  tile.run = params.runs.runs[BlockZ()];
  tile.group = params.qkv.num_q_heads / params.qkv.num_kv_heads;
  tile.first = BlockX() * kQueries;
  const int left = tile.run.num_rows * tile.group - tile.first;
  if (left <= 0) {
    return;  // a tile that only longer runs have
  }
  tile.count = left < kQueries ? left : kQueries;
  const PlainShared shared = SharedParts(head_dim);
  const int64_t stride = int64_t{params.qkv.num_q_heads + 2 * params.qkv.num_kv_heads} * head_dim;
  for (int i = ThreadIndex(); i < kQueries * head_dim; i += kPlainThreads) {
    const int query = i / head_dim;
    float value = 0.0f;
    if (query < tile.count) {
      value =
          params.qkv.data[tile.Row(query) * stride + tile.Head(query) * head_dim + i % head_dim];
    }
    shared.q.Store(i, value * params.scale * kLog2E);
  }
  SyncBlock();
  PlainState state;
  const int visible = tile.Visible(tile.count - 1);
  for (int base = WarpIndex() * kWarpThreads; base < visible; base += kPlainThreads) {
    Scores<Type>(params, tile, shared, base);
    SyncWarp();
    Weights(shared, state);
    SyncWarp();
    AddValues<Type>(params, tile, shared, base, state);
    SyncWarp();
  }
  LeaveState(shared, state, head_dim);
  SyncBlock();
  StoreOut(params, tile, shared);
}

}  // namespace

TANDEM_KERNEL(attention_plain_f32, AttentionParams, kPlainThreads, kBarriers) {
  AttendPlainly<Float32>(params);
}
TANDEM_KERNEL(attention_plain_bf16, AttentionParams, kPlainThreads, kBarriers) {
  AttendPlainly<BFloat16>(params);
}

}  // namespace tandem::gpu_worker::ops::cuda
