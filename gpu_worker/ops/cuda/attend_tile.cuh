#pragma once

#include "gpu_worker/ops/cuda/numbers.cuh"
#include "gpu_worker/ops/cuda/paged.cuh"

// One warp's attention of 16 query rows per matrix tile to 32 tokens of bfloat16 K and V, by matrix
// instructions, with online softmax.
//
// The paged layout keeps K as words of two dimensions, 16 tokens side by side, and V as words of
// two tokens: the operand order of the matrix instruction. What a lane loads as 16 bytes is four
// tokens of K (four dimensions of V); each of the four belongs to a product of its own, so that
// products take the tokens 0, 4, 8, ..., then 1, 5, 9, ... of the tile. Softmax does not mind the
// order. V's words hold tokens 2i and 2i + 1, the weights' operand tokens i and i + 4: a byte
// permutation of two words gives two operands.
//
// From sm_80 on products are of bfloat16. sm_75 has none; there operands are halves, K and V in
// sixteenths so that larger values than a half's fit.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kTileTokens = 32;
constexpr int kMatrixRows = 16;
constexpr float kLog2E = 1.44269504088896341f;

#if TANDEM_ARCH >= 800
constexpr float kPoolFactor = 1.0f;  // what products of K or V must be multiplied by

TANDEM_DEVICE uint32_t OperandPair(float low, float high) { return BFloat16PairOf(low, high); }
TANDEM_DEVICE uint32_t OperandOf(uint32_t pool_word) { return pool_word; }
TANDEM_DEVICE void Multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MatrixBFloat16(c, a, b);
}
#else
constexpr float kPoolFactor = 16.0f;

TANDEM_DEVICE uint32_t OperandPair(float low, float high) { return HalfPairOf(low, high); }
TANDEM_DEVICE uint32_t OperandOf(uint32_t pool_word) {
  return HalfPairOf(FloatOfBFloat16(pool_word & 0xffffu) * (1.0f / kPoolFactor),
                    FloatOfBFloat16(pool_word >> 16) * (1.0f / kPoolFactor));
}
TANDEM_DEVICE void Multiply(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MatrixHalf(c, a, b);
}
#endif

// Queries in shared memory, as operand pairs [rows, QueryStride(dim)]: the odd stride spreads the
// rows of an operand over the banks.
TANDEM_DEVICE constexpr int QueryStride(int dim) { return dim / 2 + 4; }

// A lane's share of the running result of kTiles times 16 query rows. Rows l / 4 and l / 4 + 8 of
// each; of every 32 dimensions 8 * (l % 4) to 8 * (l % 4) + 7: see DimensionOf.
template <int kDim, int kTiles>
struct TileState {
  float out[kTiles][kDim / 8][4];
  float max[kTiles][2];
  float sum[kTiles][2];  // over the lane's tokens only
};

template <int kDim, int kTiles>
TANDEM_DEVICE void Clear(TileState<kDim, kTiles>& state) {
  TANDEM_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      state.max[tile][half] = FloatOf(0xff800000u);
      state.sum[tile][half] = 0.0f;
    }
    TANDEM_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) {
        state.out[tile][n][i] = 0.0f;
      }
    }
  }
}

// Of out[..][4 * (d / 32) + f][half * 2 + column], f < 4: the lane's dimension.
TANDEM_DEVICE int DimensionOf(int lane, int group, int f, int column) {
  return group * 32 + lane % 4 * 8 + column * 4 + f;
}

TANDEM_DEVICE uint32_t WordAt(const Words4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Scores of the tile: [tile][e][half * 2 + column] is row l / 4 + 8 * half, token
// 8 * (l % 4) + 4 * column + e.
template <int kDim, int kTiles, typename Source>
TANDEM_DEVICE void TileScores(const Source& source, const Shared<uint32_t>& q,
                              float (&scores)[kTiles][4][4]) {
  const int row = Lane() / 4;
  const int quarter = Lane() % 4;
  TANDEM_UNROLL_BY(Source::kStepsAtOnce)
  for (int step = 0; step < kDim / 16; ++step) {
    const Words4 low = source.K(8 * step + quarter);
    const Words4 high = source.K(8 * step + 4 + quarter);
    TANDEM_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      const int at = (tile * kMatrixRows + row) * QueryStride(kDim) + 8 * step + quarter;
      const int below = at + 8 * QueryStride(kDim);
      const uint32_t a[4] = {q.Load(at), q.Load(below), q.Load(at + 4), q.Load(below + 4)};
      TANDEM_UNROLL
      for (int e = 0; e < 4; ++e) {
        const uint32_t b[2] = {OperandOf(WordAt(low, e)), OperandOf(WordAt(high, e))};
        Multiply(scores[tile][e], a, b);
      }
    }
  }
}

// Turns a row's scores into weights and rescales what was summed up before. `visible`: how many of
// the tile's tokens the row may see.
template <int kDim, int kTiles>
TANDEM_DEVICE void TileWeights(int tile, int half, int visible, float (&scores)[4][4],
                               TileState<kDim, kTiles>& state) {
  const int quarter = Lane() % 4;
  float max = state.max[tile][half];
  TANDEM_UNROLL
  for (int e = 0; e < 4; ++e) {
    TANDEM_UNROLL
    for (int column = 0; column < 2; ++column) {
      float& score = scores[e][2 * half + column];
      const int token = 8 * quarter + 4 * column + e;
      score = token < visible ? score : FloatOf(0xff800000u);
      max = Max(max, score);
    }
  }
  max = Max(max, ShuffleXor(max, 1));
  max = Max(max, ShuffleXor(max, 2));
  const float base = max == FloatOf(0xff800000u) ? 0.0f : max;  // nothing is visible yet
  const float correction = Exp2(state.max[tile][half] - base);
  float sum = 0.0f;
  TANDEM_UNROLL
  for (int e = 0; e < 4; ++e) {
    TANDEM_UNROLL
    for (int column = 0; column < 2; ++column) {
      float& score = scores[e][2 * half + column];
      score = Exp2(score - base);
      sum += score;
    }
  }
  state.max[tile][half] = max;
  state.sum[tile][half] = state.sum[tile][half] * correction + sum;
  TANDEM_UNROLL
  for (int n = 0; n < kDim / 8; ++n) {
    state.out[tile][n][2 * half] *= correction;
    state.out[tile][n][2 * half + 1] *= correction;
  }
}

// A word of V's tokens 2i and 2i + 1 with what lies past the last token zeroed: it may be NaN.
TANDEM_DEVICE uint32_t OnlyTokens(uint32_t word, int first_token, int tokens) {
  const uint32_t low = first_token < tokens ? 0xffffu : 0u;
  const uint32_t high = first_token + 1 < tokens ? 0xffff0000u : 0u;
  return word & (low | high);
}

// out += weights * V.
template <int kDim, int kTiles, typename Source>
TANDEM_DEVICE void TileValues(const Source& source, int tokens,
                              const float (&weights)[kTiles][4][4],
                              TileState<kDim, kTiles>& state) {
  uint32_t a[kTiles][2][4];  // tokens e and e + 1 of each four, e = 0 and 2
  TANDEM_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    TANDEM_UNROLL
    for (int pair = 0; pair < 2; ++pair) {
      const float(&first)[4] = weights[tile][2 * pair];
      const float(&second)[4] = weights[tile][2 * pair + 1];
      a[tile][pair][0] = OperandPair(first[0], first[1]);
      a[tile][pair][1] = OperandPair(first[2], first[3]);
      a[tile][pair][2] = OperandPair(second[0], second[1]);
      a[tile][pair][3] = OperandPair(second[2], second[3]);
    }
  }
  TANDEM_UNROLL
  for (int group = 0; group < kDim / 32; ++group) {
    Words4 v[4];
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      v[i] = source.V(i, group);
    }
    TANDEM_UNROLL
    for (int f = 0; f < 4; ++f) {
      uint32_t words[4];
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) {
        words[i] = WordAt(v[i], f);
        if (tokens < kTileTokens) {
          words[i] = OnlyTokens(words[i], 8 * (Lane() % 4) + 2 * i, tokens);
        }
        words[i] = OperandOf(words[i]);
      }
      TANDEM_UNROLL
      for (int pair = 0; pair < 2; ++pair) {
        const uint32_t b[2] = {PermuteBytes(words[pair], words[pair + 2], 0x5410),
                               PermuteBytes(words[pair], words[pair + 2], 0x7632)};
        TANDEM_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          Multiply(state.out[tile][4 * group + f], a[tile][pair], b);
        }
      }
    }
  }
}

// What of a tile there is to see.
template <int kTiles>
struct TileBounds {
  int tokens;              // the first `tokens` of its tokens hold something
  int visible[kTiles][2];  // how many of them rows l / 4 and l / 4 + 8 of each matrix tile may see
};

// `scale_log2`: of scores, for weights by exp2. Source: K(i) is the lane's four tokens, of the
// dimensions 2i and 2i + 1: tokens 4 * (l / 4) and on; V(i, group) tokens 8 * (l % 4) + 2i and one
// on, of the dimensions 32 * group + 4 * (l / 4) and three on. Source::kStepsAtOnce: how many steps
// of 16 dimensions have their loads of K in flight together, each of which takes 8 registers.
template <int kDim, int kTiles, typename Source>
TANDEM_DEVICE void AttendTile(const Source& source, const Shared<uint32_t>& q, float scale_log2,
                              const TileBounds<kTiles>& bounds, TileState<kDim, kTiles>& state) {
  float scores[kTiles][4][4] = {};
  TileScores<kDim>(source, q, scores);
  TANDEM_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    TANDEM_UNROLL
    for (int e = 0; e < 4; ++e) {
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[tile][e][i] *= scale_log2;
      }
    }
    TileWeights(tile, 0, bounds.visible[tile][0], scores[tile], state);
    TileWeights(tile, 1, bounds.visible[tile][1], scores[tile], state);
  }
  TileValues(source, bounds.tokens, scores, state);
}

// Makes the sums those of all tokens, in every lane of a row.
template <int kDim, int kTiles>
TANDEM_DEVICE void JoinSums(TileState<kDim, kTiles>& state) {
  TANDEM_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      float& sum = state.sum[tile][half];
      sum += ShuffleXor(sum, 1);
      sum += ShuffleXor(sum, 2);
    }
  }
}

// Four threads' worth of a query's row to shared memory as operands: words [first, first + step,
// ..) of `q`'s row `row`; a null `from` gives zeros.
template <int kDim>
TANDEM_DEVICE void LoadQuery(const Shared<uint32_t>& q, int row, const float* from, int head_dim) {
  for (int i = Lane(); i < kDim / 2; i += kWarpThreads) {
    uint32_t pair = 0;
    if (from != nullptr && 2 * i < head_dim) {
      pair = OperandPair(from[2 * i], from[2 * i + 1]);
    }
    q.Store(row * QueryStride(kDim) + i, pair);
  }
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::cuda
