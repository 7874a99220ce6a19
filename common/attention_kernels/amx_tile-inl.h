#pragma once

// Tiles by the AMX matrix unit. The pool's layout is the one its right operand needs: 16 pairs of
// rows of 16 columns. So K sub-tiles and V chunks are loaded as they lie, and up to 16 query heads
// cost one multiplication. Accumulators of V live in `acc`, since a tile register can not be
// scaled.

#include "common/attention_kernels/pair_policies-inl.h"
#include "common/attention_kernels/tile-inl.h"

namespace tandem::attention {
namespace {

struct AmxBf16Policy : PairBf16Policy {
  static constexpr int kPrefetchLocality = kFirstLevel;
};

template <class Widener>
struct AmxBytePolicy : PairBf16Policy {
  using Element = typename Widener::Element;
  static constexpr bool kScales = Widener::kScales;
  static constexpr int kPrefetchLocality = kFirstLevel;
};

constexpr int kAmxRows = 16;  // of a tile register
constexpr int kAmxRowBytes = 64;
constexpr int kAmxDepth = 32;  // elements of the dimension summed over
constexpr int kAmxMaxGroup = kAmxRows;

// Tile registers: 0 to 3 sums, 4 and 5 the left and right operand, 6 and 7 the same for what is
// left of a depth that is no multiple of 32 (head dims are multiples of 16).
struct alignas(64) AmxConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 32, 64};
  uint8_t rows[16] = {};
};

// The intrinsics do not tell the compiler which memory they read and write.
inline void MemoryFence() { asm volatile("" ::: "memory"); }

inline void AmxConfigure(int group) {
  AmxConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.rows[tile] = static_cast<uint8_t>(group);
  }
  config.rows[5] = kAmxRows;
  config.rows[7] = kAmxRows / 2;
  MemoryFence();
  _tile_loadconfig(&config);
}

// Asks for the lines that are `ahead` bytes from an operand's rows where kLocality is not
// kNoPrefetch.
template <int kLocality, int kRows>
inline void AmxAskAhead(const void* from, long stride, ptrdiff_t ahead) {
  if constexpr (kLocality != kNoPrefetch) {
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      __builtin_prefetch(static_cast<const char*>(from) + i * stride + ahead, 0, kLocality);
    }
  }
}

// A right operand, 16 rows.
template <int kLocality>
inline void AmxLoadRight(const void* from, long stride, ptrdiff_t ahead) {
  _tile_loadd(5, from, stride);
  AmxAskAhead<kLocality, kAmxRows>(from, stride, ahead);
}

// scores [group, 16] of a sub-tile, which is read in the order of memory; what is `ahead` bytes
// from it is read later.
template <bool kPrefetch>
inline void AmxScoreSubTile(const uint16_t* k, const uint16_t* q, int head_dim, ptrdiff_t ahead,
                            float* scores) {
  const long q_stride = head_dim * 2L;
  _tile_zero(0);
  int d = 0;
  for (; d + kAmxDepth <= head_dim; d += kAmxDepth) {
    _tile_loadd(4, q + d, q_stride);
    AmxLoadRight<kPrefetch ? kFirstLevel : kNoPrefetch>(k + d * kLanes, kAmxRowBytes, ahead);
    _tile_dpbf16ps(0, 4, 5);
  }
  if (d < head_dim) {
    _tile_loadd(6, q + d, q_stride);
    _tile_loadd(7, k + d * kLanes, kAmxRowBytes);
    _tile_dpbf16ps(0, 6, 7);
  }
  _tile_stored(0, scores, kTileTokens * sizeof(float));
}

// V of 32 tokens per step: `row_stride` elements between pairs of tokens. What is `ahead` bytes
// from them, or in the next step where that is further, is read later.
struct AmxColumns {
  const uint16_t* v;
  int row_stride;
  int steps;
  ptrdiff_t ahead;
};

// out [group, 64] += weights V, `out_stride` bytes between rows of out.
template <bool kPrefetch>
inline void AmxAccumulateFour(const AmxColumns& columns, const uint16_t* weights, float* out,
                              long out_stride) {
  _tile_loadd(0, out, out_stride);
  _tile_loadd(1, out + kLanes, out_stride);
  _tile_loadd(2, out + 2 * kLanes, out_stride);
  _tile_loadd(3, out + 3 * kLanes, out_stride);
  // Known to the compiler, so that prefetches need no registers for their addresses.
  constexpr long kStride = 2L * kChunkColumns * sizeof(uint16_t);
  // The rows of a tile are 4 lines apart: it pays to be a whole step ahead.
  constexpr ptrdiff_t kAhead = kAmxRows * kStride;
  const uint16_t* v = columns.v;
  for (int i = 0; i < columns.steps; ++i, v += kAmxRows * 2 * kChunkColumns) {
    _tile_loadd(4, weights + i * kAmxDepth, kTileTokens * sizeof(uint16_t));
    AmxLoadRight<kPrefetch ? kFirstLevel : kNoPrefetch>(v, kStride, kAhead);
    _tile_dpbf16ps(0, 4, 5);
    AmxLoadRight<kPrefetch ? kFirstLevel : kNoPrefetch>(v + 2 * kLanes, kStride, kAhead);
    _tile_dpbf16ps(1, 4, 5);
    AmxLoadRight<kPrefetch ? kFirstLevel : kNoPrefetch>(v + 4 * kLanes, kStride, kAhead);
    _tile_dpbf16ps(2, 4, 5);
    AmxLoadRight<kPrefetch ? kFirstLevel : kNoPrefetch>(v + 6 * kLanes, kStride, kAhead);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, out, out_stride);
  _tile_stored(1, out + kLanes, out_stride);
  _tile_stored(2, out + 2 * kLanes, out_stride);
  _tile_stored(3, out + 3 * kLanes, out_stride);
}

inline void AmxAccumulateOne(const AmxColumns& columns, const uint16_t* weights, float* out,
                             long out_stride) {
  _tile_loadd(0, out, out_stride);
  const long stride = columns.row_stride * 2L;
  const uint16_t* v = columns.v;
  for (int i = 0; i < columns.steps; ++i, v += kAmxRows * columns.row_stride) {
    _tile_loadd(4, weights + i * kAmxDepth, kTileTokens * sizeof(uint16_t));
    _tile_loadd(5, v, stride);
    _tile_dpbf16ps(0, 4, 5);
  }
  _tile_stored(0, out, out_stride);
}

// The last tokens of a tile, fewer than 32, with zeros for stale rows, which may hold NaN.
inline void AmxCopyTail(const uint16_t* v, int row_stride, int tokens, uint16_t* padded) {
  int filled = tokens / 2 * row_stride;
  memcpy(padded, v, sizeof(uint16_t) * static_cast<size_t>(filled));
  if (tokens % 2 != 0) {
    MaskLanes(v + filled, row_stride / 2, 1, padded + filled);
    filled += row_stride;
  }
  memset(padded + filled, 0,
         sizeof(uint16_t) * static_cast<size_t>(kAmxRows * row_stride - filled));
}

// One chunk of up to 64 columns.
template <bool kPrefetch>
inline void AmxAccumulateChunk(AmxColumns columns, int width, const uint16_t* weights, float* out,
                               long out_stride) {
  for (; width >= 4 * kLanes; width -= 4 * kLanes) {
    AmxAccumulateFour<kPrefetch>(columns, weights, out, out_stride);
    columns.v += 8 * kLanes;
    out += 4 * kLanes;
  }
  for (; width > 0; width -= kLanes) {
    AmxAccumulateOne(columns, weights, out, out_stride);
    columns.v += 2 * kLanes;
    out += kLanes;
  }
}

template <bool kPrefetch>
inline void AmxAccumulate(const Tile<AmxBf16Policy>& tile, const uint16_t (*weights)[kTileTokens],
                          float* acc) {
  const long out_stride = tile.head_dim * static_cast<long>(sizeof(float));
  const int whole = tile.tokens / kAmxDepth;
  const int rest = tile.tokens % kAmxDepth;
  alignas(64) uint16_t padded[kAmxRows * 2 * kChunkColumns];
  for (int begin = 0; begin < tile.head_dim; begin += kChunkColumns) {
    const int width = MinOf(kChunkColumns, tile.head_dim - begin);
    const int row_stride = 2 * width;
    const uint16_t* v = tile.v + begin * tile.block_tokens + tile.first_row * width;
    if (whole > 0) {
      AmxAccumulateChunk<kPrefetch>({v, row_stride, whole, tile.after_v}, width, &weights[0][0],
                                    acc + begin, out_stride);
    }
    if (rest > 0) {
      AmxCopyTail(v + whole * kAmxDepth * width, row_stride, rest, padded);
      MemoryFence();
      AmxAccumulateChunk<false>({padded, row_stride, 1, 0}, width, &weights[0][whole * kAmxDepth],
                                acc + begin, out_stride);
    }
  }
}

inline void AmxScaleAccumulators(const float* correction, int group, int head_dim, float* acc) {
  for (int g = 0; g < group; ++g, acc += head_dim) {
    if (correction[g] == 1.0f) {
      continue;
    }
    for (int d = 0; d < head_dim; d += kLanes) {
      Ops::Store(acc + d, Ops::Mul(Ops::Load(acc + d), Ops::Set1(correction[g])));
    }
  }
}

template <bool kPrefetch>
inline void AmxScores(const Tile<AmxBf16Policy>& tile, const uint16_t* q, float* scores) {
  for (int s = 0; s * kLanes < tile.tokens; ++s) {
    AmxScoreSubTile<kPrefetch>(tile.k + s * kLanes * tile.head_dim, q, tile.head_dim, tile.after_k,
                               scores + s * kLanes);
  }
}

// Bytes are widened to a buffer in the first-level cache, 16 tokens of K or 64 columns of V at a
// time. Worth it where many heads share them. `rows` rows of `width` lanes of bytes become twice as
// many of as many pairs.
template <class Widener, bool kPrefetch>
inline void AmxWiden(const typename Widener::Element* from, int rows, int width, ptrdiff_t distance,
                     uint16_t* to) {
  for (int row = 0; row < rows; ++row, to += 4 * width) {
    for (int lane = 0; lane < width; lane += kLanes, from += 4 * kLanes) {
      _mm512_store_si512(to + 2 * lane, Widener::template Load<0>(from));
      _mm512_store_si512(to + 2 * (width + lane), Widener::template Load<1>(from));
      if constexpr (kPrefetch) {
        __builtin_prefetch(reinterpret_cast<const char*>(from) + distance, 0, kFirstLevel);
      }
    }
  }
}

template <bool kPrefetch, class Widener>
inline void AmxScores(const Tile<AmxBytePolicy<Widener>>& tile, const uint16_t* q, float* scores) {
  alignas(64) uint16_t wide[kLanes * kMaxHeadDim];
  const int elements = kLanes * tile.head_dim;
  for (int s = 0; s * kLanes < tile.tokens; ++s) {
    AmxWiden<Widener, kPrefetch>(tile.k + s * elements, tile.head_dim / 4, kLanes, tile.after_k,
                                 wide);
    MemoryFence();
    AmxScoreSubTile<false>(wide, q, tile.head_dim, 0, scores + s * kLanes);
  }
}

template <bool kPrefetch, class Widener>
inline void AmxAccumulate(const Tile<AmxBytePolicy<Widener>>& tile,
                          const uint16_t (*weights)[kTileTokens], float* acc) {
  const long out_stride = tile.head_dim * static_cast<long>(sizeof(float));
  const int steps = (tile.tokens + kAmxDepth - 1) / kAmxDepth;
  const int whole = tile.tokens / 4;
  alignas(64) uint16_t wide[kTileTokens * kChunkColumns];
  for (int begin = 0; begin < tile.head_dim; begin += kChunkColumns) {
    const int width = MinOf(kChunkColumns, tile.head_dim - begin);
    const auto* v = tile.v + begin * tile.block_tokens + tile.first_row * width;
    AmxWiden<Widener, kPrefetch>(v, whole, width, tile.after_v, wide);
    int filled = whole * 4 * width;
    if (tile.tokens % 4 != 0) {
      typename Widener::Element last[4 * kChunkColumns];
      MaskLanes(v + filled, width, tile.tokens % 4, last);
      AmxWiden<Widener, false>(last, 1, width, 0, wide + filled);
      filled += 4 * width;
    }
    memset(wide + filled, 0,
           sizeof(uint16_t) * static_cast<size_t>(steps * kAmxDepth * width - filled));
    MemoryFence();
    AmxAccumulateChunk<false>({wide, 2 * width, steps, 0}, width, &weights[0][0], acc + begin,
                              out_stride);
  }
}

template <bool kPrefetch, class Policy>
void AmxAttendTile(int group, const Tile<Policy>& tile, const QueryRows<Policy>& rows) {
  TileScratch<Policy, kAmxMaxGroup> scratch;
  const int sub_tiles = (tile.tokens + kLanes - 1) / kLanes;
  AmxScores<kPrefetch>(tile, rows.q, &scratch.scores[0][0]);
  MemoryFence();
  const bool raised = Softmax(tile, rows, group, &scratch);
  if constexpr (kPrefetch) {
    PrefetchFirst<Policy>(tile.next);
  }
  // A tail's weights are read up to the next multiple of 32.
  for (int g = 0; sub_tiles % 2 != 0 && g < group; ++g) {
    memset(&scratch.weights[g][sub_tiles * kLanes], 0, kLanes * sizeof(uint16_t));
  }
  if (raised) {
    AmxScaleAccumulators(scratch.correction, group, tile.head_dim, rows.acc);
  }
  MemoryFence();
  AmxAccumulate<kPrefetch>(tile, scratch.weights, rows.acc);
  MemoryFence();
}

template <class Policy>
void AmxAttendGroup(int group, const Tile<Policy>& tile, QueryRows<Policy> rows) {
  const int rounds = (group + kAmxMaxGroup - 1) / kAmxMaxGroup;
  for (int round = 0; round < rounds; ++round) {
    const int count = group / rounds + (round < group % rounds ? 1 : 0);
    if (tile.group_size > kAmxMaxGroup) {
      AmxConfigure(count);  // which takes some 200 cycles; else the segment has done it
    }
    if (tile.prefetch) {
      AmxAttendTile<true>(count, tile, rows);
    } else {
      AmxAttendTile<false>(count, tile, rows);
    }
    rows.Advance(count, tile.head_dim);
  }
}

// Found instead of the template of the vector kernels.
inline void AttendGroup(int group, const Tile<AmxBf16Policy>& tile,
                        const QueryRows<AmxBf16Policy>& rows) {
  AmxAttendGroup(group, tile, rows);
}
inline void AttendGroup(int group, const Tile<AmxBytePolicy<Fp8Widener>>& tile,
                        const QueryRows<AmxBytePolicy<Fp8Widener>>& rows) {
  AmxAttendGroup(group, tile, rows);
}

}  // namespace
}  // namespace tandem::attention
