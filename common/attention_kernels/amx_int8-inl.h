#pragma once

// int8 tiles by the AMX matrix unit. A line of K, four dims of 16 tokens, or of V, four tokens of
// 16 columns, is a row of the right operand as it lies in the pool. Queries and weights are 15-bit
// integers as two bytes, each with a row of the left operand: value = 128 * upper + lower.

#include "common/attention_kernels/amx_tile-inl.h"

namespace tandem::attention {
namespace {

// Integers of 15 bits as two bytes.
struct AmxInt8Bytes {
  __m512i upper;
  __m512i lower;
};

inline AmxInt8Bytes AmxSplitWords(__m512i words) {
  const __m512i upper = _mm512_srai_epi16(_mm512_add_epi16(words, _mm512_set1_epi16(64)), 7);
  return {upper, _mm512_sub_epi16(words, _mm512_slli_epi16(upper, 7))};
}

struct AmxInt8Policy : PairInt8Policy {
  static constexpr int kPrefetchLocality = kFirstLevel;
  // A row is one of upper bytes, then one of lower bytes, of `length` each.
  static void StoreIntegers(const float* values, int count, float factor, int length, Weight* row) {
    auto* upper = reinterpret_cast<int8_t*>(row);
    int i = 0;
    for (; i + 64 <= count; i += 64) {
      Store64(values + i, Ops::Set1(factor), upper + i, upper + length + i);
    }
    for (; i < count; i += kLanes) {
      const AmxInt8Bytes bytes = AmxSplitWords(Integers(values + i, Ops::Set1(factor)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(upper + i), _mm512_cvtepi32_epi8(bytes.upper));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(upper + length + i),
                       _mm512_cvtepi32_epi8(bytes.lower));
    }
  }

 private:
  // Whole lines, which the matrix unit can load while the stores are on their way.
  static void Store64(const float* values, Ops::Vec factor, int8_t* upper, int8_t* lower) {
    // Packing interleaves quarters of its operands.
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const AmxInt8Bytes first =
        AmxSplitWords(_mm512_packs_epi32(Integers(values, factor), Integers(values + 16, factor)));
    const AmxInt8Bytes second = AmxSplitWords(
        _mm512_packs_epi32(Integers(values + 32, factor), Integers(values + 48, factor)));
    const __m512i uppers = _mm512_packs_epi16(first.upper, second.upper);
    const __m512i lowers = _mm512_packs_epi16(first.lower, second.lower);
    _mm512_storeu_si512(upper, _mm512_permutexvar_epi32(order, uppers));
    _mm512_storeu_si512(lower, _mm512_permutexvar_epi32(order, lowers));
  }
};

constexpr int kAmxInt8MaxGroup = kAmxRows / 2;
constexpr int kAmxInt8Depth = 64;  // dims of K or tokens of V in a tile register
constexpr int kAmxInt8Rest = 16;   // the same in registers 6 and 7, for what is left

// Left operands and sums have two rows per query head.
inline void AmxConfigureInt8(int group) {
  AmxConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kAmxRowBytes;
    config.rows[tile] = static_cast<uint8_t>(2 * group);
  }
  config.rows[5] = kAmxRows;
  config.row_bytes[6] = kAmxInt8Rest;
  config.rows[7] = kAmxInt8Rest / 4;
  MemoryFence();
  _tile_loadconfig(&config);
}

// Sums of the left operand's rows, for one tile: [2 * group, kTileTokens].
using AmxInt8Sums = int32_t[kAmxRows][kTileTokens];

inline Ops::Vec AmxInt8Whole(const int32_t* upper, const int32_t* lower) {
  return _mm512_cvtepi32_ps(
      _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(upper), 7), _mm512_load_si512(lower)));
}

// One sub-tile, which is read in the order of memory; what is `ahead` bytes from it is read later.
template <int kLocality>
inline void AmxInt8SubTile(const int8_t* k, const int8_t* q, int head_dim, ptrdiff_t ahead,
                           int32_t* sums) {
  _tile_zero(0);
  int d = 0;
  for (; d + kAmxInt8Depth <= head_dim; d += kAmxInt8Depth) {
    _tile_loadd(4, q + d, head_dim);
    AmxLoadRight<kLocality>(k + d * kLanes, kAmxRowBytes, ahead);
    _tile_dpbssd(0, 4, 5);
  }
  for (; d < head_dim; d += kAmxInt8Rest) {
    _tile_loadd(6, q + d, head_dim);
    _tile_loadd(7, k + d * kLanes, kAmxRowBytes);
    AmxAskAhead<kLocality, kAmxInt8Rest / 4>(k + d * kLanes, kAmxRowBytes, ahead);
    _tile_dpbssd(0, 6, 7);
  }
  _tile_stored(0, sums, kTileTokens * sizeof(int32_t));
}

// The same where the query rows, of 64 or 128 dims, stay in registers 2 and 3.
template <int kLocality>
inline void AmxInt8HeldSubTile(const int8_t* k, int head_dim, ptrdiff_t ahead, int32_t* sums) {
  _tile_zero(0);
  AmxLoadRight<kLocality>(k, kAmxRowBytes, ahead);
  _tile_dpbssd(0, 2, 5);
  if (head_dim > kAmxInt8Depth) {
    AmxLoadRight<kLocality>(k + kAmxInt8Depth * kLanes, kAmxRowBytes, ahead);
    _tile_dpbssd(0, 3, 5);
  }
  _tile_stored(0, sums, kTileTokens * sizeof(int32_t));
}

template <int kLocality>
inline void AmxInt8Scores(int group, const Tile<AmxInt8Policy>& tile, const int8_t* q,
                          float (*scores)[kTileTokens]) {
  alignas(64) AmxInt8Sums sums;
  const int head_dim = tile.head_dim;
  const bool held = head_dim == kAmxInt8Depth || head_dim == 2 * kAmxInt8Depth;
  if (held) {
    _tile_loadd(2, q, head_dim);
    _tile_loadd(3, q + head_dim - kAmxInt8Depth, head_dim);
  }
  const int sub_tiles = (tile.tokens + kLanes - 1) / kLanes;
  const int8_t* k = tile.k;
  for (int s = 0; s < sub_tiles; ++s, k += kLanes * head_dim) {
    if (held) {
      AmxInt8HeldSubTile<kLocality>(k, head_dim, tile.after_k, &sums[0][s * kLanes]);
    } else {
      AmxInt8SubTile<kLocality>(k, q, head_dim, tile.after_k, &sums[0][s * kLanes]);
    }
  }
  MemoryFence();
  for (int g = 0; g < group; ++g) {
    for (int t = 0; t < sub_tiles * kLanes; t += kLanes) {
      Ops::Store(&scores[g][t], AmxInt8Whole(&sums[2 * g][t], &sums[2 * g + 1][t]));
    }
  }
}

// Columns of V that stand together, of `tokens` tokens: `stride` bytes between lines of the same
// columns.
struct AmxInt8Columns {
  const int8_t* v;
  long stride;
  int tokens;
};

// sums [2 * group, 64] of 64 columns. Tokens are read up to the next multiple of 16: stale ones are
// finite, and their weights are zero.
template <int kLocality>
inline void AmxInt8Four(const AmxInt8Columns& columns, const int8_t* weights, int32_t* sums) {
  constexpr long kStride = 4 * kChunkColumns;
  constexpr long kSumsStride = kTileTokens * sizeof(int32_t);
  // The rows of a tile are 4 lines apart: it pays to be a whole step ahead.
  constexpr ptrdiff_t kAhead = kAmxRows * kStride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const int8_t* v = columns.v;
  int t = 0;
  for (; t + kAmxInt8Depth <= columns.tokens; t += kAmxInt8Depth, v += kAmxRows * kStride) {
    _tile_loadd(4, weights + t, kTileTokens);
    AmxLoadRight<kLocality>(v, kStride, kAhead);
    _tile_dpbssd(0, 4, 5);
    AmxLoadRight<kLocality>(v + kAmxRowBytes, kStride, kAhead);
    _tile_dpbssd(1, 4, 5);
    AmxLoadRight<kLocality>(v + 2 * kAmxRowBytes, kStride, kAhead);
    _tile_dpbssd(2, 4, 5);
    AmxLoadRight<kLocality>(v + 3 * kAmxRowBytes, kStride, kAhead);
    _tile_dpbssd(3, 4, 5);
  }
  for (; t < columns.tokens; t += kAmxInt8Rest, v += kAmxInt8Rest / 4 * kStride) {
    _tile_loadd(6, weights + t, kTileTokens);
    _tile_loadd(7, v, kStride);
    _tile_dpbssd(0, 6, 7);
    _tile_loadd(7, v + kAmxRowBytes, kStride);
    _tile_dpbssd(1, 6, 7);
    _tile_loadd(7, v + 2 * kAmxRowBytes, kStride);
    _tile_dpbssd(2, 6, 7);
    _tile_loadd(7, v + 3 * kAmxRowBytes, kStride);
    _tile_dpbssd(3, 6, 7);
  }
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kLanes, kSumsStride);
  _tile_stored(2, sums + 2 * kLanes, kSumsStride);
  _tile_stored(3, sums + 3 * kLanes, kSumsStride);
}

// The same of 16 columns.
template <int kLocality>
inline void AmxInt8One(const AmxInt8Columns& columns, const int8_t* weights, int32_t* sums) {
  _tile_zero(0);
  const int8_t* v = columns.v;
  int t = 0;
  for (; t + kAmxInt8Depth <= columns.tokens; t += kAmxInt8Depth, v += kAmxRows * columns.stride) {
    _tile_loadd(4, weights + t, kTileTokens);
    AmxLoadRight<kLocality>(v, columns.stride, kPrefetchAhead);
    _tile_dpbssd(0, 4, 5);
  }
  for (; t < columns.tokens; t += kAmxInt8Rest, v += kAmxInt8Rest / 4 * columns.stride) {
    _tile_loadd(6, weights + t, kTileTokens);
    _tile_loadd(7, v, columns.stride);
    _tile_dpbssd(0, 6, 7);
  }
  _tile_stored(0, sums, kTileTokens * sizeof(int32_t));
}

// out [width] = out * correction + sums * scale.
inline void AmxInt8Update(const int32_t* sums, int width, float scale, float correction,
                          float* out) {
  for (int c = 0; c < width; c += kLanes) {
    const Ops::Vec sum = AmxInt8Whole(sums + c, sums + kTileTokens + c);
    Ops::Store(out + c, Ops::MulAdd(sum, Ops::Set1(scale),
                                    Ops::Mul(Ops::Load(out + c), Ops::Set1(correction))));
  }
}

// All columns first, so that sums have reached the cache before they are loaded again.
template <int kLocality>
inline void AmxInt8Values(int group, const Tile<AmxInt8Policy>& tile,
                          const TileScratch<AmxInt8Policy, kAmxInt8MaxGroup>& scratch, float* acc) {
  constexpr int kParts = kMaxHeadDim / kTileTokens;
  alignas(64) AmxInt8Sums sums[kParts];
  const auto* weights = reinterpret_cast<const int8_t*>(scratch.weights[0]);
  MemoryFence();
  for (int begin = 0; begin < tile.head_dim; begin += kChunkColumns) {
    const int width = MinOf(kChunkColumns, tile.head_dim - begin);
    const int8_t* v = tile.v + begin * tile.block_tokens + tile.first_row * width;
    int32_t* to = &sums[begin / kTileTokens][0][begin % kTileTokens];
    if (width == kChunkColumns) {
      AmxInt8Four<kLocality>({v, 4L * width, tile.tokens}, weights, to);
    } else {
      for (int c = 0; c < width; c += kLanes) {
        AmxInt8One<kLocality>({v + 4 * c, 4L * width, tile.tokens}, weights, to + c);
      }
    }
  }
  MemoryFence();
  for (int g = 0; g < group; ++g) {
    for (int begin = 0; begin < tile.head_dim; begin += kTileTokens) {
      AmxInt8Update(sums[begin / kTileTokens][2 * g], MinOf(kTileTokens, tile.head_dim - begin),
                    scratch.weight_scale[g], scratch.correction[g],
                    acc + g * tile.head_dim + begin);
    }
  }
}

template <int kLocality>
void AmxInt8AttendTile(int group, const Tile<AmxInt8Policy>& tile,
                       const QueryRows<AmxInt8Policy>& rows) {
  TileScratch<AmxInt8Policy, kAmxInt8MaxGroup> scratch;
  AmxInt8Scores<kLocality>(group, tile, reinterpret_cast<const int8_t*>(rows.q), scratch.scores);
  Softmax(tile, rows, group, &scratch);
  if constexpr (kLocality != kNoPrefetch) {
    PrefetchFirst<AmxInt8Policy>(tile.next);
  }
  AmxInt8Values<kLocality>(group, tile, scratch, rows.acc);
}

// Equal rounds of a segment's groups are configured once, by the segment.
inline int AmxInt8Rounds(int group) { return (group + kAmxInt8MaxGroup - 1) / kAmxInt8MaxGroup; }

inline void AttendGroup(int group, const Tile<AmxInt8Policy>& tile, QueryRows<AmxInt8Policy> rows) {
  const int rounds = AmxInt8Rounds(group);
  const bool configured = group == tile.group_size && group % rounds == 0;
  for (int round = 0; round < rounds; ++round) {
    const int count = group / rounds + (round < group % rounds ? 1 : 0);
    if (!configured) {
      AmxConfigureInt8(count);
    }
    if (tile.prefetch) {
      AmxInt8AttendTile<kFirstLevel>(count, tile, rows);
    } else {
      AmxInt8AttendTile<kNoPrefetch>(count, tile, rows);
    }
    rows.Advance(count, tile.head_dim);
  }
}

}  // namespace
}  // namespace tandem::attention
