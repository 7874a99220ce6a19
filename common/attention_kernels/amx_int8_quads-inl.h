#pragma once

// int8 tiles by the AMX matrix unit for larger groups of query heads. The unit sums products of
// four bytes where the pool's order pairs two: four dims of a token, or four tokens of a column,
// have to stand together. One shuffle per line does that on the way to a buffer in the first-level
// cache, from which the products are made: a price that does not grow with the group, while the way
// of amx_int8_tile-inl.h has four times the products. Queries and weights are 15-bit integers as
// two bytes, each with a row of the left operand: value = 128 * upper + lower.

#include "common/attention_kernels/amx_int8_tile-inl.h"

namespace tandem::attention {
namespace {

struct AmxQuadPolicy : PairInt8Policy {
  static constexpr Prefetch PrefetchRule(int) { return Prefetch::kNextTile; }
};

constexpr int kAmxQuadMaxGroup = 8;
constexpr int kAmxQuadDepth = 64;  // bytes summed over: dims of K, tokens of V
constexpr int kAmxChunkTiles = kPairChunkColumns / kLanes;

// Whether this kernel takes a segment: V comes in whole chunks.
inline bool AmxQuadTakes(const kv::PoolGeometry& geometry, const SegmentArgs& args) {
  return geometry.head_dim % kAmxQuadDepth == 0 && args.group_size > kAmxInt8MaxGroup;
}

// Left operands and sums have two rows per query head.
inline void AmxConfigureQuads(int group) {
  AmxConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kAmxRowBytes;
    config.rows[tile] = static_cast<uint8_t>(2 * group);
  }
  config.rows[5] = kAmxRows;
  config.rows[7] = kAmxRows;
  MemoryFence();
  _tile_loadconfig(&config);
}

// 64 integers become a row of upper and a row of lower bytes.
inline void AmxSplitRow(const int16_t* from, int8_t* rows) {
  for (int half = 0; half < 2; ++half) {
    __m256i upper;
    __m256i lower;
    SplitIntegers(from + half * 32, &upper, &lower);
    auto* to = reinterpret_cast<__m256i*>(rows + half * 32);
    _mm256_store_si256(to, upper);
    _mm256_store_si256(to + 2, lower);
  }
}

// Left operands [blocks][2 * group, 64] of rows of integers that are `stride` apart.
inline void AmxSplitRows(int group, int blocks, const int16_t* from, int stride, int8_t* tiles) {
  for (int g = 0; g < group; ++g, from += stride) {
    for (int block = 0; block < blocks; ++block) {
      AmxSplitRow(from + block * kAmxQuadDepth,
                  tiles + block * kAmxTileBytes + 2 * g * kAmxRowBytes);
    }
  }
}

template <int kLocality>
inline void AmxAhead(const int8_t* from, ptrdiff_t ahead) {
  if constexpr (kLocality != kNoPrefetch) {
    __builtin_prefetch(from + ahead, 0, kLocality);
  }
}

// A sub-tile of K: each line, two pairs of dims of 16 tokens, becomes 16 times four dims.
template <int kLocality>
inline void AmxQuadsOfK(const int8_t* k, int lines, ptrdiff_t ahead, int8_t* to) {
  // Bytes 2t and 2t + 1 of the lower, then of the upper half.
  const __m512i first = _mm512_set1_epi32(0x21200100);
  const __m512i step =
      _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                         _mm512_set1_epi32(0x02020202));
  const __m512i order = _mm512_add_epi8(first, step);
#pragma GCC unroll 4
  for (int i = 0; i < lines; ++i, k += kAmxRowBytes, to += kAmxRowBytes) {
    _mm512_store_si512(to, _mm512_permutexvar_epi8(order, _mm512_loadu_si512(k)));
    AmxAhead<kLocality>(k, ahead);
  }
}

// Up to 64 tokens of a chunk of 64 columns of V: `quads` times four tokens. Tile 2 h of the result
// holds columns 0..3, 8..11, 16..19 and 24..27 of half h of the columns, tile 2 h + 1 the others.
template <int kLocality>
inline void AmxQuadsOfV(const int8_t* v, int quads, ptrdiff_t ahead, int8_t* to) {
  int8_t* const end = to + kAmxTileBytes;
#pragma GCC unroll 2
  for (int i = 0; i < quads; ++i, v += 4 * kAmxRowBytes, to += kAmxRowBytes) {
    __m512i line[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      line[j] = _mm512_loadu_si512(v + j * kAmxRowBytes);
      AmxAhead<kLocality>(v + j * kAmxRowBytes, ahead);
    }
    _mm512_store_si512(to, _mm512_unpacklo_epi16(line[0], line[2]));
    _mm512_store_si512(to + kAmxTileBytes, _mm512_unpackhi_epi16(line[0], line[2]));
    _mm512_store_si512(to + 2 * kAmxTileBytes, _mm512_unpacklo_epi16(line[1], line[3]));
    _mm512_store_si512(to + 3 * kAmxTileBytes, _mm512_unpackhi_epi16(line[1], line[3]));
  }
  for (; to < end; to += kAmxRowBytes) {  // after the sequence's end
    for (int j = 0; j < kAmxChunkTiles; ++j) {
      _mm512_store_si512(to + j * kAmxTileBytes, _mm512_setzero_si512());
    }
  }
}

// Sums of the left operand's rows, [2 * group, 16].
using AmxQuadSums = int32_t[kAmxRows][kLanes];

inline __m512i AmxWhole(const int32_t (*rows)[kLanes]) {
  return _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(rows[0]), 7),
                          _mm512_load_si512(rows[1]));
}

// Raw scores of all sub-tiles. Each is put in order while the one before is multiplied.
template <int kLocality>
inline void AmxQuadScores(int group, const Tile<AmxQuadPolicy>& tile, const int8_t* queries,
                          float (*scores)[kTileTokens]) {
  constexpr int kMaxBlocks = 4;  // head dims up to 256
  // One sub-tile after the other: 4 KiB apart loads would wait for stores to the other one.
  alignas(64) int8_t quads[2 * kMaxBlocks * kAmxTileBytes];
  alignas(64) AmxQuadSums sums[kTileTokens / kLanes];
  const int blocks = tile.head_dim / kAmxQuadDepth;
  const int lines = blocks * kAmxRows;
  const int sub_tiles = (tile.tokens + kLanes - 1) / kLanes;
  AmxQuadsOfK<kLocality>(tile.k, lines, tile.after_k, quads);
  for (int s = 0; s < sub_tiles; ++s) {
    if (s + 1 < sub_tiles) {
      AmxQuadsOfK<kLocality>(tile.k + (s + 1) * kLanes * tile.head_dim, lines, tile.after_k,
                             quads + (s + 1) % 2 * lines * kAmxRowBytes);
    }
    MemoryFence();
    _tile_zero(0);
    for (int block = 0; block < blocks; ++block) {
      _tile_loadd(4, queries + block * kAmxTileBytes, kAmxRowBytes);
      _tile_loadd(5, quads + s % 2 * lines * kAmxRowBytes + block * kAmxTileBytes, kAmxRowBytes);
      _tile_dpbssd(0, 4, 5);
    }
    _tile_stored(0, sums[s], kAmxRowBytes);
  }
  MemoryFence();
  for (int g = 0; g < group; ++g) {
    for (int s = 0; s < sub_tiles; ++s) {
      Ops::Store(&scores[g][s * kLanes], _mm512_cvtepi32_ps(AmxWhole(&sums[s][2 * g])));
    }
  }
}

// out [64] = out * correction + sums * scale.
inline void AmxQuadUpdate(const AmxQuadSums* sums, int g, float scale, float correction,
                          float* out) {
  const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  for (int half = 0; half < 2; ++half) {
    const __m512i first = AmxWhole(&sums[2 * half][2 * g]);
    const __m512i second = AmxWhole(&sums[2 * half + 1][2 * g]);
    for (int quarter = 0; quarter < 2; ++quarter) {
      const __m512i lanes = _mm512_add_epi32(order, _mm512_set1_epi32(8 * quarter));
      const Ops::Vec sum = _mm512_cvtepi32_ps(_mm512_permutex2var_epi32(first, lanes, second));
      float* to = out + (2 * half + quarter) * kLanes;
      Ops::Store(
          to, Ops::MulAdd(sum, Ops::Set1(scale), Ops::Mul(Ops::Load(to), Ops::Set1(correction))));
    }
  }
}

// V in units of up to 64 tokens of 64 columns: in the order of memory.
class AmxQuadValues {
 public:
  explicit AmxQuadValues(const Tile<AmxQuadPolicy>& tile)
      : tile_(tile), steps_((tile.tokens + kAmxQuadDepth - 1) / kAmxQuadDepth) {}

  int units() const { return tile_.head_dim / kPairChunkColumns * steps_; }
  int steps() const { return steps_; }

  template <int kLocality>
  void Order(int unit) {
    const int step = unit % steps_;
    const int8_t* v = tile_.v + unit / steps_ * kPairChunkColumns * tile_.block_tokens +
                      (tile_.first_row + step * kAmxQuadDepth) * kPairChunkColumns;
    const int left = tile_.tokens - step * kAmxQuadDepth;
    AmxQuadsOfV<kLocality>(v, (MinOf(left, kAmxQuadDepth) + 3) / 4, tile_.after_v,
                           quads_[unit % 2]);
  }

  // `weights` [steps] left operands; `acc` [group, head_dim].
  void Multiply(int unit, int group, const int8_t* weights,
                const TileScratch<AmxQuadPolicy, kAmxQuadMaxGroup>& scratch, float* acc) {
    const int step = unit % steps_;
    const int8_t* quads = quads_[unit % 2];
    MemoryFence();
    if (step == 0) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    _tile_loadd(4, weights + step * kAmxTileBytes, kAmxRowBytes);
    _tile_loadd(5, quads, kAmxRowBytes);
    _tile_dpbssd(0, 4, 5);
    _tile_loadd(7, quads + kAmxTileBytes, kAmxRowBytes);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, quads + 2 * kAmxTileBytes, kAmxRowBytes);
    _tile_dpbssd(2, 4, 5);
    _tile_loadd(7, quads + 3 * kAmxTileBytes, kAmxRowBytes);
    _tile_dpbssd(3, 4, 7);
    if (step + 1 < steps_) {
      return;
    }
    _tile_stored(0, sums_[0], kAmxRowBytes);
    _tile_stored(1, sums_[1], kAmxRowBytes);
    _tile_stored(2, sums_[2], kAmxRowBytes);
    _tile_stored(3, sums_[3], kAmxRowBytes);
    MemoryFence();
    float* out = acc + unit / steps_ * kPairChunkColumns;
    for (int g = 0; g < group; ++g) {
      AmxQuadUpdate(sums_, g, scratch.weight_scale[g], scratch.correction[g],
                    out + g * tile_.head_dim);
    }
  }

 private:
  const Tile<AmxQuadPolicy>& tile_;
  const int steps_;
  alignas(64) int8_t quads_[2][kAmxChunkTiles * kAmxTileBytes];
  alignas(64) AmxQuadSums sums_[kAmxChunkTiles];
};

template <int kLocality>
void AmxQuadAttendTile(int group, const Tile<AmxQuadPolicy>& tile,
                       const QueryRows<AmxQuadPolicy>& rows) {
  constexpr int kMaxBlocks = 4;  // head dims up to 256
  alignas(64) int8_t left[kMaxBlocks * kAmxTileBytes];
  TileScratch<AmxQuadPolicy, kAmxQuadMaxGroup> scratch;
  AmxSplitRows(group, tile.head_dim / kAmxQuadDepth, rows.q, tile.head_dim, left);
  AmxQuadScores<kLocality>(group, tile, left, scratch.scores);
  AmxQuadValues values(tile);
  values.Order<kLocality>(0);
  Softmax(tile, rows, group, &scratch);
  if constexpr (kLocality != kNoPrefetch) {
    PrefetchFirst<AmxQuadPolicy>(tile.next);
  }
  // Weights are read up to the next multiple of 64; rows of V there may be stale, but are finite.
  const int weighted = (tile.tokens + kLanes - 1) / kLanes * kLanes;
  for (int g = 0; weighted < values.steps() * kAmxQuadDepth && g < group; ++g) {
    memset(&scratch.weights[g][weighted], 0,
           static_cast<size_t>(values.steps() * kAmxQuadDepth - weighted) * sizeof(int16_t));
  }
  AmxSplitRows(group, values.steps(), scratch.weights[0], kTileTokens, left);
  for (int unit = 0; unit < values.units(); ++unit) {
    if (unit + 1 < values.units()) {
      values.Order<kLocality>(unit + 1);
    }
    values.Multiply(unit, group, left, scratch, rows.acc);
  }
}

inline void AttendGroup(int group, const Tile<AmxQuadPolicy>& tile, QueryRows<AmxQuadPolicy> rows) {
  const int rounds = (group + kAmxQuadMaxGroup - 1) / kAmxQuadMaxGroup;
  for (int round = 0; round < rounds; ++round) {
    const int count = group / rounds + (round < group % rounds ? 1 : 0);
    if (tile.group_size > kAmxQuadMaxGroup) {
      AmxConfigureQuads(count);  // else the segment has done it
    }
    if (!tile.prefetch) {
      AmxQuadAttendTile<kNoPrefetch>(count, tile, rows);
    } else if (tile.far) {
      AmxQuadAttendTile<kSecondLevel>(count, tile, rows);
    } else {
      AmxQuadAttendTile<kFirstLevel>(count, tile, rows);
    }
    rows.Advance(count, tile.head_dim);
  }
}

}  // namespace
}  // namespace tandem::attention
