#include "gpu_worker/ops/cuda/attend_tile.cuh"

// Causal attention of runs of rows over bfloat16 pools. A block takes kTiles * 64 query heads of
// one KV head (consecutive rows, and in a row the group's heads, so that the group shares K and V);
// each of its four warps kTiles * 16 of them. Tiles of 32 tokens pass through shared memory, the
// next being copied while one is worked on. Grid [tiles of the longest run, KV heads, runs], tiles
// with the longest context first; dynamic shared memory: PrefillSharedBytes. head_dim up to kDim, a
// multiple of 16.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kPrefillThreads = 128;
constexpr int kWarps = kPrefillThreads / kWarpThreads;
constexpr int kStages = 2;

// Words of one stage: K [2 sub-tiles, kDim / 2, 16 tokens], V [16 pairs of tokens, kDim].
template <int kDim>
constexpr int kTileWords = kTileTokens* kDim / 2;

// Four tokens of a K row, or dimensions of a V row, are moved so that the eight lanes that are
// served together find them in different banks.
TANDEM_DEVICE int KChunk(int row, int chunk) { return chunk ^ (row & 2); }
TANDEM_DEVICE int VChunk(int row, int chunk) { return chunk ^ (row / 4 * 2); }

template <int kDim>
struct StagedTile {
  static constexpr int kStepsAtOnce = 2;
  Shared<uint32_t> k;
  Shared<uint32_t> v;

  TANDEM_METHOD Words4 K(int row) const {
    const int sub_tile = Lane() / 16;
    const int chunk = KChunk(row, Lane() / 4 % 4);
    return k.template LoadAs<Words4>((sub_tile * (kDim / 2) + row) * 16 + chunk * 4);
  }
  TANDEM_METHOD Words4 V(int i, int group) const {
    const int row = Lane() % 4 * 4 + i;
    return v.template LoadAs<Words4>(row * kDim + VChunk(row, group * 8 + Lane() / 4) * 4);
  }
};

template <int kDim>
TANDEM_DEVICE StagedTile<kDim> StageOf(int stage, int query_words) {
  const int first = (query_words + stage * 2 * kTileWords<kDim>)*4;
  return {DynamicShared<uint32_t>(first, kTileWords<kDim>),
          DynamicShared<uint32_t>(first + kTileWords<kDim> * 4, kTileWords<kDim>)};
}

// What a block works on. Query i is row (first + i) / group of the run.
struct Work {
  RunParams run;
  const int32_t* table;
  int first;
  int count;
  int group;
  TANDEM_METHOD int Visible(int i) const {
    return i < count ? run.start_position + (first + i) / group + 1 : 0;
  }
};

// Asks for tokens [base, base + 32), of which those of whole sub-tiles up to `end` exist.
template <int kDim>
TANDEM_DEVICE void CopyTile(const AttentionParams& params, const Work& work,
                            const StagedTile<kDim>& to, int base, int end) {
  const PoolParams& pool = params.pool;
  constexpr int kChunks = 4;  // of a K row
  for (int i = ThreadIndex(); i < kTileTokens / kSubTileTokens * (kDim / 2) * kChunks;
       i += kPrefillThreads) {
    const int row = i / kChunks % (kDim / 2);
    const int chunk = i % kChunks;
    const int sub_tile = i / (kChunks * (kDim / 2));
    const int token = base + sub_tile * kSubTileTokens;
    const char* from = pool.data;
    bool is_there = false;
    if (token < end && 2 * row < pool.head_dim) {
      is_there = true;
      const char* tile = TileOf(pool, work.table[token / pool.block_tokens], BlockY(), false);
      from = tile + (int64_t{token % pool.block_tokens} * pool.head_dim + row * 32 + chunk * 8) * 2;
    }
    CopyAsync16(to.k, (sub_tile * (kDim / 2) + row) * 16 + KChunk(row, chunk) * 4, from, is_there);
  }
  for (int i = ThreadIndex(); i < kTileTokens / 2 * (kDim / 4); i += kPrefillThreads) {
    const int row = i / (kDim / 4);  // of pairs of tokens
    const int chunk = i % (kDim / 4);
    const int token = base + row * 2;
    const char* from = pool.data;
    bool is_there = false;
    if (token / kSubTileTokens * kSubTileTokens < end && 4 * chunk < pool.head_dim) {
      is_there = true;
      const char* tile = TileOf(pool, work.table[token / pool.block_tokens], BlockY(), true);
      from = tile + int64_t{VElement(pool, token % pool.block_tokens, 4 * chunk)} * 2;
    }
    CopyAsync16(to.v, row * kDim + VChunk(row, chunk) * 4, from, is_there);
  }
  CommitCopies();
}

template <int kDim>
TANDEM_DEVICE void LoadQueries(const AttentionParams& params, const Work& work,
                               const Shared<uint32_t>& q, int rows) {
  const int head_dim = params.pool.head_dim;
  const int64_t heads = params.qkv.num_q_heads + 2 * params.qkv.num_kv_heads;
  for (int i = WarpIndex(); i < rows; i += kWarps) {
    const float* from = nullptr;
    if (i < work.count) {
      const int64_t row = int64_t{work.run.first_row} + (work.first + i) / work.group;
      const int head = BlockY() * work.group + (work.first + i) % work.group;
      from = params.qkv.data + (row * heads + head) * head_dim;
    }
    LoadQuery<kDim>(q, i, from, head_dim);
  }
}

// Eight dimensions of a query's result.
TANDEM_DEVICE void StoreEight(const AttentionParams& params, int64_t to, const float (&values)[8]) {
  uint32_t words[4];
  TANDEM_UNROLL
  for (int i = 0; i < 4; ++i) {
    words[i] = PairOf(params.out_type, values[2 * i], values[2 * i + 1]);
  }
  StoreGlobal(static_cast<uint16_t*>(params.out) + to,
              Words4{words[0], words[1], words[2], words[3]});
}

template <int kDim, int kTiles>
TANDEM_DEVICE void StoreOut(const AttentionParams& params, const Work& work, int first_query,
                            const TileState<kDim, kTiles>& state) {
  const int head_dim = params.pool.head_dim;
  TANDEM_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = first_query + tile * kMatrixRows + half * 8 + Lane() / 4;
      if (i >= work.count) {
        continue;
      }
      const float factor = kPoolFactor / state.sum[tile][half];
      const int64_t row = int64_t{work.run.first_row} + (work.first + i) / work.group;
      const int head = BlockY() * work.group + (work.first + i) % work.group;
      const int64_t to = (row * params.qkv.num_q_heads + head) * head_dim;
      TANDEM_UNROLL
      for (int group = 0; group < kDim / 32; ++group) {
        const int d = DimensionOf(Lane(), group, 0, 0);
        if (d >= head_dim) {
          continue;
        }
        float values[8];
        TANDEM_UNROLL
        for (int k = 0; k < 8; ++k) {
          values[k] = state.out[tile][4 * group + k % 4][2 * half + k / 4] * factor;
        }
        StoreEight(params, to + d, values);
      }
    }
  }
}

template <int kDim, int kTiles>
TANDEM_DEVICE void Attend(const AttentionParams& params, const Work& work,
                          const Shared<uint32_t>& q, TileState<kDim, kTiles>& state) {
  constexpr int kWarpQueries = kTiles * kMatrixRows;
  constexpr int kQueryWords = kWarps * kWarpQueries * QueryStride(kDim);
  const int first_query = WarpIndex() * kWarpQueries;
  int limit[kTiles][2];
  TANDEM_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      limit[tile][half] = work.Visible(first_query + tile * kMatrixRows + half * 8 + Lane() / 4);
    }
  }
  const int last =
      first_query + kWarpQueries < work.count ? first_query + kWarpQueries : work.count;
  const int warp_end = last > first_query ? work.Visible(last - 1) : 0;
  const int end = work.Visible(work.count - 1);
  CopyTile<kDim>(params, work, StageOf<kDim>(0, kQueryWords), 0, end);
  for (int base = 0, stage = 0; base < end; base += kTileTokens, stage = 1 - stage) {
    if (base + kTileTokens < end) {
      CopyTile<kDim>(params, work, StageOf<kDim>(1 - stage, kQueryWords), base + kTileTokens, end);
      WaitCopies<kStages - 1>();
    } else {
      WaitCopies<0>();
    }
    SyncBlock();
    if (base < warp_end) {
      TileBounds<kTiles> bounds;
      bounds.tokens = end - base;
      TANDEM_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        bounds.visible[tile][0] = limit[tile][0] - base;
        bounds.visible[tile][1] = limit[tile][1] - base;
      }
      AttendTile<kDim, kTiles>(StageOf<kDim>(stage, kQueryWords), q,
                               params.scale * kLog2E * kPoolFactor, bounds, state);
    }
    SyncBlock();  // before the tile is copied over
  }
}

template <int kDim, int kTiles>
TANDEM_DEVICE void Prefill(const AttentionParams& params) {
  constexpr int kBlockQueries = kWarps * kTiles * kMatrixRows;
  constexpr int kWarpWords = kTiles * kMatrixRows * QueryStride(kDim);
  Work work;
  work.run = params.runs.runs[BlockZ()];
  work.table = params.runs.tables + work.run.table_begin;
  work.group = params.qkv.num_q_heads / params.qkv.num_kv_heads;
  work.first = (GridX() - 1 - BlockX()) * kBlockQueries;
  const int left = work.run.num_rows * work.group - work.first;
  if (left <= 0) {
    return;  // a tile that only longer runs have
  }
  work.count = left < kBlockQueries ? left : kBlockQueries;
  LoadQueries<kDim>(params, work, DynamicShared<uint32_t>(0, kWarps * kWarpWords), kBlockQueries);
  SyncBlock();
  TileState<kDim, kTiles> state;
  Clear(state);
  const auto q = DynamicShared<uint32_t>(WarpIndex() * kWarpWords * 4, kWarpWords);
  Attend<kDim, kTiles>(params, work, q, state);
  JoinSums(state);
  StoreOut<kDim, kTiles>(params, work, WarpIndex() * kTiles * kMatrixRows, state);
}

}  // namespace

// sm_75 has neither the shared memory nor, with its conversions, the registers for the largest
// tiles: launchers do not choose them there, and they do nothing.
constexpr bool kHasLargeTiles = TANDEM_ARCH >= 800;

TANDEM_KERNEL(prefill_attention_64, AttentionParams, kPrefillThreads, kBarriers) {
  Prefill<64, 1>(params);
}
TANDEM_KERNEL(prefill_attention_64_long, AttentionParams, kPrefillThreads, kBarriers) {
  Prefill<64, 2>(params);
}
TANDEM_KERNEL(prefill_attention_128, AttentionParams, kPrefillThreads, kBarriers) {
  Prefill<128, 1>(params);
}
TANDEM_KERNEL(prefill_attention_128_long, AttentionParams, kPrefillThreads, kBarriers) {
  if constexpr (kHasLargeTiles) {
    Prefill<128, 2>(params);
  }
}
TANDEM_KERNEL(prefill_attention_256, AttentionParams, kPrefillThreads, kBarriers) {
  if constexpr (kHasLargeTiles) {
    Prefill<256, 1>(params);
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
