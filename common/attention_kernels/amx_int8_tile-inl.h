#pragma once

// int8 tiles by the AMX matrix unit, which sums products of four bytes. The pool's order pairs two
// bytes: four of K are two dims of two tokens, four of V two tokens of two columns. So the left
// operand has, for each query head, rows with zeros in two of four places, and every row's sums
// are valid in the columns that it is meant for. The matrix unit has time for that: it takes the
// rows of two heads of K (four of V) in 16 cycles, for 16 lines. Queries and weights are 15-bit
// integers as two bytes: value = 128 * upper + lower.

#include "common/attention_kernels/amx_tile-inl.h"

namespace tandem::attention {
namespace {

struct AmxInt8Policy : PairInt8Policy {
  // Arithmetic of a group takes longer than memory, so memory has to be asked for long before: with
  // lines 2 KiB ahead the two times would add up.
  static constexpr Prefetch PrefetchRule(int group) {
    return group > 1 ? Prefetch::kNextTile : Prefetch::kAhead;
  }
};

constexpr int kAmxInt8MaxGroup = 4;  // larger groups: amx_int8_quads-inl.h
constexpr int kAmxInt8Dims = 64;     // of K in a tile register
constexpr int kAmxInt8Tokens = 32;   // of V in a tile register
constexpr int kAmxTileBytes = kAmxRows * kAmxRowBytes;

// Whether this kernel takes a segment: tiles are whole ones.
inline bool AmxInt8Takes(const kv::PoolGeometry& geometry, const SegmentArgs& args) {
  return geometry.head_dim % kAmxInt8Dims == 0 && args.group_size <= kAmxInt8MaxGroup &&
         geometry.block_tokens % kAmxInt8Tokens == 0 && args.first_token % kAmxInt8Tokens == 0;
}

// All tile registers whole.
inline void AmxConfigureInt8() {
  AmxConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kAmxRowBytes;
    config.rows[tile] = kAmxRows;
  }
  MemoryFence();
  _tile_loadconfig(&config);
}

// Upper and lower bytes of 32 integers.
inline void SplitIntegers(const int16_t* from, __m256i* upper, __m256i* lower) {
  const __m512i values = _mm512_loadu_si512(from);
  const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(values, _mm512_set1_epi16(64)), 7);
  *upper = _mm512_cvtepi16_epi8(high);
  *lower = _mm512_cvtepi16_epi8(_mm512_sub_epi16(values, _mm512_slli_epi16(high, 7)));
}

// Left operands of K for two heads and 64 dims; per head, upper bytes first, rows for (first pair
// of a line, even tokens), (first, odd), (second, even), (second, odd).
inline void AmxQueryRows(__m512i bytes, int8_t* rows) {
  const __m512i first = _mm512_set1_epi32(0xffff);
  _mm512_store_si512(rows, _mm512_and_si512(bytes, first));
  _mm512_store_si512(rows + kAmxRowBytes, _mm512_slli_epi32(bytes, 16));
  _mm512_store_si512(rows + 2 * kAmxRowBytes, _mm512_srli_epi32(bytes, 16));
  _mm512_store_si512(rows + 3 * kAmxRowBytes, _mm512_andnot_si512(first, bytes));
}

inline void AmxQueryTiles(int group, int head_dim, const int16_t* q, int8_t* tiles) {
  const int blocks = head_dim / kAmxInt8Dims;
  for (int g = 0; g < group; ++g, q += head_dim) {
    int8_t* rows = tiles + g / 2 * blocks * kAmxTileBytes + g % 2 * 8 * kAmxRowBytes;
    for (int block = 0; block < blocks; ++block, rows += kAmxTileBytes) {
      __m256i upper[2];
      __m256i lower[2];
      SplitIntegers(q + block * kAmxInt8Dims, &upper[0], &lower[0]);
      SplitIntegers(q + block * kAmxInt8Dims + 32, &upper[1], &lower[1]);
      AmxQueryRows(_mm512_inserti64x4(_mm512_castsi256_si512(upper[0]), upper[1], 1), rows);
      AmxQueryRows(_mm512_inserti64x4(_mm512_castsi256_si512(lower[0]), lower[1], 1),
                   rows + 4 * kAmxRowBytes);
    }
  }
}

// Left operands of V for four heads and 32 tokens; per head rows for (upper bytes, even columns),
// (upper, odd), (lower, even), (lower, odd).
inline void AmxWeightTile(int group, int first, const int16_t (*weights)[kTileTokens],
                          int8_t* tile) {
  for (int g = 0; g < group; ++g, tile += 4 * kAmxRowBytes) {
    __m256i upper;
    __m256i lower;
    SplitIntegers(&weights[g][first], &upper, &lower);
    const __m512i wide_upper = _mm512_cvtepu16_epi32(upper);
    const __m512i wide_lower = _mm512_cvtepu16_epi32(lower);
    _mm512_store_si512(tile, wide_upper);
    _mm512_store_si512(tile + kAmxRowBytes, _mm512_slli_epi32(wide_upper, 16));
    _mm512_store_si512(tile + 2 * kAmxRowBytes, wide_lower);
    _mm512_store_si512(tile + 3 * kAmxRowBytes, _mm512_slli_epi32(wide_lower, 16));
  }
}

// Bytes of the pool; what is `ahead` bytes from them is read later.
struct AmxBytes {
  const int8_t* data;
  ptrdiff_t ahead;
};

using AmxSums = int32_t[2][kAmxRows][kLanes];

// One sub-tile of K against one or two pairs of heads.
template <int kLocality>
inline void AmxInt8Products(const AmxBytes& k, const int8_t* queries, int blocks, int pairs,
                            AmxSums* sums) {
  _tile_zero(0);
  _tile_zero(1);
  const int pair_bytes = blocks * kAmxTileBytes;
  for (int block = 0; block < blocks; ++block, queries += kAmxTileBytes) {
    AmxLoadRight<kLocality>(k.data + block * kAmxTileBytes, kAmxRowBytes, k.ahead);
    _tile_loadd(4, queries, kAmxRowBytes);
    _tile_dpbssd(0, 4, 5);
    if (pairs > 1) {
      _tile_loadd(6, queries + pair_bytes, kAmxRowBytes);
      _tile_dpbssd(1, 6, 5);
    }
  }
  _tile_stored(0, (*sums)[0], kAmxRowBytes);
  if (pairs > 1) {
    _tile_stored(1, (*sums)[1], kAmxRowBytes);
  }
}

inline __m512i Interleave(__m512i even, __m512i odd, bool second_half) {
  const __m512i lanes = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i order = second_half ? _mm512_add_epi32(lanes, _mm512_set1_epi32(8)) : lanes;
  return _mm512_permutex2var_epi32(even, order, odd);
}

// Scores of one head's 16 tokens from its 8 rows of sums.
inline Ops::Vec AmxInt8Scores(const int32_t (*rows)[kLanes]) {
  __m512i parity[2];
  for (int e = 0; e < 2; ++e) {
    const auto both = [&](int first) {
      return _mm256_add_epi32(Ops::LoadHalfRegister(rows[first + e]),
                              Ops::LoadHalfRegister(rows[first + 2 + e] + 8));
    };
    parity[e] = _mm512_castsi256_si512(_mm256_add_epi32(_mm256_slli_epi32(both(0), 7), both(4)));
  }
  return _mm512_cvtepi32_ps(Interleave(parity[0], parity[1], false));
}

// 64 columns of V: sums [0] and [1] are columns 0 to 31 and 32 to 63.
template <int kLocality>
inline void AmxInt8Columns(const AmxBytes& values, const int8_t* weights, int steps,
                           AmxSums* sums) {
  constexpr long kStride = 2 * kPairChunkColumns;
  _tile_zero(0);
  _tile_zero(1);
  const int8_t* v = values.data;
  for (int i = 0; i < steps; ++i, v += kAmxRows * kStride, weights += kAmxTileBytes) {
    _tile_loadd(4, weights, kAmxRowBytes);
    AmxLoadRight<kLocality>(v, kStride, values.ahead);
    _tile_dpbssd(0, 4, 5);
    AmxLoadRight<kLocality>(v + kAmxRowBytes, kStride, values.ahead);
    _tile_dpbssd(1, 4, 5);
  }
  _tile_stored(0, (*sums)[0], kAmxRowBytes);
  _tile_stored(1, (*sums)[1], kAmxRowBytes);
}

// out [32] = out * correction + sums * scale.
inline void AmxInt8Update(const int32_t (*rows)[kLanes], float scale, float correction,
                          float* out) {
  const auto whole = [&](int e) {
    return _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(rows[e]), 7),
                            _mm512_load_si512(rows[2 + e]));
  };
  const __m512i even = whole(0);
  const __m512i odd = whole(1);
  for (int half = 0; half < 2; ++half) {
    const Ops::Vec sum = _mm512_cvtepi32_ps(Interleave(even, odd, half == 1));
    float* to = out + half * kLanes;
    Ops::Store(to,
               Ops::MulAdd(sum, Ops::Set1(scale), Ops::Mul(Ops::Load(to), Ops::Set1(correction))));
  }
}

template <int kLocality>
inline void AmxInt8Values(int group, const Tile<AmxInt8Policy>& tile,
                          const TileScratch<AmxInt8Policy, kAmxInt8MaxGroup>& scratch, float* acc) {
  constexpr int kSteps = kTileTokens / kAmxInt8Tokens;
  alignas(64) int8_t weights[kSteps * kAmxTileBytes];
  alignas(64) AmxSums sums;
  const int steps = (tile.tokens + kAmxInt8Tokens - 1) / kAmxInt8Tokens;
  for (int i = 0; i < steps; ++i) {
    AmxWeightTile(group, i * kAmxInt8Tokens, scratch.weights, weights + i * kAmxTileBytes);
  }
  for (int begin = 0; begin < tile.head_dim; begin += kPairChunkColumns) {
    const int8_t* v = tile.v + begin * tile.block_tokens + tile.first_row * kPairChunkColumns;
    MemoryFence();
    AmxInt8Columns<kLocality>({v, tile.after_v}, weights, steps, &sums);
    MemoryFence();
    for (int g = 0; g < group; ++g) {
      for (int half = 0; half < 2; ++half) {
        AmxInt8Update(&sums[half][g * 4], scratch.weight_scale[g], scratch.correction[g],
                      acc + g * tile.head_dim + begin + half * 32);
      }
    }
  }
}

template <int kLocality>
void AmxInt8AttendTile(int group, const Tile<AmxInt8Policy>& tile,
                       const QueryRows<AmxInt8Policy>& rows) {
  constexpr int kMaxBlocks = 4;  // head dims up to 256
  alignas(64) int8_t queries[kAmxInt8MaxGroup / 2 * kMaxBlocks * kAmxTileBytes];
  alignas(64) AmxSums sums;
  TileScratch<AmxInt8Policy, kAmxInt8MaxGroup> scratch;
  const int blocks = tile.head_dim / kAmxInt8Dims;
  const int sub_tiles = (tile.tokens + kLanes - 1) / kLanes;
  AmxQueryTiles(group, tile.head_dim, rows.q, queries);
  for (int s = 0; s < sub_tiles; ++s) {
    MemoryFence();
    AmxInt8Products<kLocality>({tile.k + s * kLanes * tile.head_dim, tile.after_k}, queries, blocks,
                               (group + 1) / 2, &sums);
    MemoryFence();
    for (int g = 0; g < group; ++g) {
      Ops::Store(&scratch.scores[g][s * kLanes], AmxInt8Scores(&sums[g / 2][g % 2 * 8]));
    }
  }
  Softmax(tile, rows, group, &scratch);
  if constexpr (kLocality != kNoPrefetch) {
    PrefetchFirst<AmxInt8Policy>(tile.next);
  }
  // A tail's weights are read up to the next multiple of 32; rows of V there are stale, but finite.
  for (int g = 0; sub_tiles % 2 != 0 && g < group; ++g) {
    memset(&scratch.weights[g][sub_tiles * kLanes], 0, kLanes * sizeof(int16_t));
  }
  AmxInt8Values<kLocality>(group, tile, scratch, rows.acc);
}

inline void AttendGroup(int group, const Tile<AmxInt8Policy>& tile,
                        const QueryRows<AmxInt8Policy>& rows) {
  if (!tile.prefetch) {
    AmxInt8AttendTile<kNoPrefetch>(group, tile, rows);
  } else if (tile.far) {
    AmxInt8AttendTile<kSecondLevel>(group, tile, rows);
  } else {
    AmxInt8AttendTile<kFirstLevel>(group, tile, rows);
  }
}

}  // namespace
}  // namespace tandem::attention
