#include "gpu_worker/ops/cuda/attend_tile.cuh"

// Attention of single rows over bfloat16 pools. A block takes up to 16 query heads of one KV head
// of a run, which share each load of K and V, and one split of its context; its four warps take
// tiles of 32 tokens in turn, straight from the pool, and merge what they have at the end. With
// several splits a second kernel merges those. Grid [splits, KV heads * query tiles, runs]; dynamic
// shared memory: DecodeSharedBytes. head_dim up to kDim, a multiple of 16.
//
// Scratch: out [runs, splits, num_q_heads, head_dim], then log-sum-exp to the base 2 [runs, splits,
// num_q_heads], minus infinity for splits without tokens.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kDecodeThreads = 128;
constexpr int kWarps = kDecodeThreads / kWarpThreads;
constexpr int kMergeThreads = 128;

// Tokens [begin, end) of the context, of a run's only row.
struct Split {
  int begin;
  int end;
};

TANDEM_DEVICE Split SplitOf(const AttentionParams& params, const RunParams& run, int split) {
  constexpr int kStep = kWarps * kTileTokens;  // a tile for each warp
  const int context = run.start_position + 1;
  const int each =
      ((context + params.num_splits - 1) / params.num_splits + kStep - 1) / kStep * kStep;
  const int begin = split * each;
  return {begin, begin + each < context ? begin + each : context};
}

TANDEM_DEVICE int64_t ScratchRow(const AttentionParams& params, int run, int split, int head) {
  return (int64_t{run} * params.num_splits + split) * params.qkv.num_q_heads + head;
}

TANDEM_DEVICE float* ScratchSums(const AttentionParams& params) {
  return params.scratch + int64_t{params.runs.num_runs} * params.num_splits *
                              params.qkv.num_q_heads * params.pool.head_dim;
}

// A tile in the pool, as a lane loads it.
template <int kDim>
struct PoolTile {
  static constexpr int kStepsAtOnce = kDim <= 128 ? kDim / 16 : TANDEM_ARCH >= 800 ? 2 : 1;
  const char* k;  // the sub-tile that holds the lane's tokens; null: past the end
  const char* v;  // the tile that holds its pairs of tokens, moved to the first of them
  int head_dim;
  int block_tokens;
  int v_token;  // in the block, the first of the lane's pairs

  TANDEM_METHOD Words4 K(int row) const {
    if (k == nullptr || 2 * row >= head_dim) {
      return Words4{0, 0, 0, 0};
    }
    return LoadGlobal<Words4>(k + row * 64 + Lane() / 4 % 4 * 16);
  }
  TANDEM_METHOD Words4 V(int i, int group) const {
    const int begin = group / 2 * kVChunkColumns;
    const int width = ChunkWidth(head_dim, begin);
    const int column = group % 2 * 32 + Lane() / 4 * 4;
    if (v == nullptr || column >= width) {
      return Words4{0, 0, 0, 0};
    }
    const int at = begin * block_tokens + (v_token + 2 * i) * width + column * 2;
    return LoadGlobal<Words4>(v + int64_t{at} * 2);
  }
};

// Tokens [base, base + 32), up to `end`.
template <int kDim>
TANDEM_DEVICE PoolTile<kDim> TileAt(const AttentionParams& params, const int32_t* table,
                                    int kv_head, Split tokens) {
  const PoolParams& pool = params.pool;
  PoolTile<kDim> tile;
  tile.head_dim = pool.head_dim;
  tile.block_tokens = pool.block_tokens;
  const int k_token = tokens.begin + Lane() / 16 * kSubTileTokens;
  tile.k = nullptr;
  if (k_token < tokens.end) {
    tile.k = TileOf(pool, table[k_token / pool.block_tokens], kv_head, false) +
             int64_t{k_token % pool.block_tokens} * pool.head_dim * 2;
  }
  const int v_token = tokens.begin + Lane() % 4 * 8;
  tile.v = nullptr;
  tile.v_token = v_token % pool.block_tokens;
  if (v_token / kSubTileTokens * kSubTileTokens < tokens.end) {
    tile.v = TileOf(pool, table[v_token / pool.block_tokens], kv_head, true);
  }
  return tile;
}

// What the block's warps share at the end.
template <int kDim>
struct Merge {
  Shared<float> out;  // [16, kDim]
  Shared<float> max;  // [kWarps, 16]
  Shared<float> sum;  // [kWarps, 16]
};

// The rows' maximum over the warps.
template <int kDim>
TANDEM_DEVICE float RowMax(const Merge<kDim>& merge, int row) {
  float max = merge.max.Load(row);
  for (int warp = 1; warp < kWarps; ++warp) {
    max = Max(max, merge.max.Load(warp * kMatrixRows + row));
  }
  return max;
}

// Sums up the warps' results, each scaled to the common maximum, one warp after another.
template <int kDim>
TANDEM_DEVICE void MergeWarps(const Merge<kDim>& merge, const TileState<kDim, 1>& state) {
  const int row = Lane() / 4;
  if (Lane() % 4 == 0) {
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      merge.max.Store(WarpIndex() * kMatrixRows + row + 8 * half, state.max[0][half]);
      merge.sum.Store(WarpIndex() * kMatrixRows + row + 8 * half, state.sum[0][half]);
    }
  }
  SyncBlock();
  for (int warp = 0; warp < kWarps; ++warp) {
    if (WarpIndex() == warp) {
      TANDEM_UNROLL
      for (int half = 0; half < 2; ++half) {
        const float max = RowMax(merge, row + 8 * half);
        const float factor = max == FloatOf(0xff800000u) ? 0.0f : Exp2(state.max[0][half] - max);
        TANDEM_UNROLL
        for (int n = 0; n < kDim / 8; ++n) {
          TANDEM_UNROLL
          for (int column = 0; column < 2; ++column) {
            const int at = (row + 8 * half) * kDim + DimensionOf(Lane(), n / 4, n % 4, column);
            const float before = warp == 0 ? 0.0f : merge.out.Load(at);
            merge.out.Store(at, before + state.out[0][n][2 * half + column] * factor);
          }
        }
      }
    }
    SyncBlock();
  }
}

// Query heads [first_head, first_head + heads) of run `run`.
struct HeadTile {
  int run;
  int first_head;
  int heads;
};

// The block's result: to the output, or to scratch where others have a share in it.
template <int kDim>
TANDEM_DEVICE void StoreBlock(const AttentionParams& params, const Merge<kDim>& merge,
                              const HeadTile& tile, int64_t row) {
  const int head_dim = params.pool.head_dim;
  for (int i = WarpIndex(); i < tile.heads; i += kWarps) {
    const float max = RowMax(merge, i);
    float sum = 0.0f;
    for (int warp = 0; warp < kWarps; ++warp) {
      sum += merge.sum.Load(warp * kMatrixRows + i) *
             Exp2(merge.max.Load(warp * kMatrixRows + i) - max);
    }
    const int head = tile.first_head + i;
    const float factor = kPoolFactor / sum;
    if (params.num_splits == 1) {
      const int64_t to = (row * params.qkv.num_q_heads + head) * head_dim;
      for (int d = Lane(); d < head_dim; d += kWarpThreads) {
        StoreElement(params.out_type, params.out, to + d, merge.out.Load(i * kDim + d) * factor);
      }
      continue;
    }
    const int64_t part = ScratchRow(params, tile.run, BlockX(), head);
    for (int d = Lane(); d < head_dim; d += kWarpThreads) {
      params.scratch[part * head_dim + d] = merge.out.Load(i * kDim + d) * factor;
    }
    if (Lane() == 0) {
      ScratchSums(params)[part] = max + Log2(sum);
    }
  }
}

template <int kDim>
TANDEM_DEVICE void LoadQueries(const AttentionParams& params, const Shared<uint32_t>& q,
                               const HeadTile& tile, int64_t row) {
  const int head_dim = params.pool.head_dim;
  const int64_t heads = params.qkv.num_q_heads + 2 * params.qkv.num_kv_heads;
  for (int i = WarpIndex(); i < kMatrixRows; i += kWarps) {
    const float* from = params.qkv.data + (row * heads + tile.first_head + i) * head_dim;
    LoadQuery<kDim>(q, i, i < tile.heads ? from : nullptr, head_dim);
  }
}

template <int kDim>
TANDEM_DEVICE void Decode(const AttentionParams& params) {
  const RunParams& run = params.runs.runs[BlockZ()];
  if (run.num_rows == 0) {
    return;
  }
  const int group = params.qkv.num_q_heads / params.qkv.num_kv_heads;
  const int query_tiles = (group + kMatrixRows - 1) / kMatrixRows;
  const int kv_head = BlockY() / query_tiles;
  const int first = BlockY() % query_tiles * kMatrixRows;
  const HeadTile tile{BlockZ(), kv_head * group + first,
                      group - first < kMatrixRows ? group - first : kMatrixRows};
  const Split split = SplitOf(params, run, BlockX());
  if (split.begin >= split.end) {
    if (ThreadIndex() < tile.heads) {
      ScratchSums(params)[ScratchRow(params, tile.run, BlockX(), tile.first_head + ThreadIndex())] =
          FloatOf(0xff800000u);
    }
    return;
  }
  constexpr int kQueryWords = kMatrixRows * QueryStride(kDim);
  const auto q = DynamicShared<uint32_t>(0, kQueryWords);
  LoadQueries<kDim>(params, q, tile, run.first_row);
  SyncBlock();
  TileState<kDim, 1> state;
  Clear(state);
  const int32_t* table = params.runs.tables + run.table_begin;
  for (int base = split.begin + WarpIndex() * kTileTokens; base < split.end;
       base += kWarps * kTileTokens) {
    const int tokens = split.end - base;
    const TileBounds<1> bounds{tokens, {{tokens, tokens}}};
    AttendTile<kDim, 1>(TileAt<kDim>(params, table, kv_head, {base, split.end}), q,
                        params.scale * kLog2E * kPoolFactor, bounds, state);
  }
  JoinSums(state);
  const int at = kQueryWords * 4;
  const Merge<kDim> merge{DynamicShared<float>(at, kMatrixRows * kDim),
                          DynamicShared<float>(at + kMatrixRows * kDim * 4, kWarps * kMatrixRows),
                          DynamicShared<float>(at + (kMatrixRows * kDim + kWarps * kMatrixRows) * 4,
                                               kWarps * kMatrixRows)};
  MergeWarps(merge, state);
  StoreBlock(params, merge, tile, run.first_row);
}

}  // namespace

TANDEM_KERNEL(decode_attention_64, AttentionParams, kDecodeThreads, kBarriers) {
  Decode<64>(params);
}
TANDEM_KERNEL(decode_attention_128, AttentionParams, kDecodeThreads, kBarriers) {
  Decode<128>(params);
}
TANDEM_KERNEL(decode_attention_256, AttentionParams, kDecodeThreads, kBarriers) {
  Decode<256>(params);
}

// Grid [query heads, runs].
TANDEM_KERNEL(decode_attention_merge, AttentionParams, kMergeThreads, kNoBarriers) {
  if (params.runs.runs[BlockY()].num_rows == 0) {
    return;
  }
  const int head_dim = params.pool.head_dim;
  const float* sums = ScratchSums(params);
  float max = FloatOf(0xff800000u);
  for (int split = 0; split < params.num_splits; ++split) {
    max = Max(max, sums[ScratchRow(params, BlockY(), split, BlockX())]);
  }
  const int64_t row = params.runs.runs[BlockY()].first_row;
  for (int d = ThreadIndex(); d < head_dim; d += BlockThreads()) {
    float total = 0.0f;
    float value = 0.0f;
    for (int split = 0; split < params.num_splits; ++split) {
      const int64_t part = ScratchRow(params, BlockY(), split, BlockX());
      if (sums[part] > FloatOf(0xff800000u)) {  // else nothing was written there
        const float weight = Exp2(sums[part] - max);
        total += weight;
        value += weight * params.scratch[part * head_dim + d];
      }
    }
    StoreElement(params.out_type, params.out,
                 (row * params.qkv.num_q_heads + BlockX()) * head_dim + d, value / total);
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
