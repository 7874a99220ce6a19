#pragma once

// Tiles by vector instructions. One pass; accumulators stay in registers inside a step and in
// `acc` between tiles.

#include "common/attention_kernels/tile-inl.h"

namespace tandem::attention {
namespace {

// Sums of a query head of K that products are added to in turns: enough chains of products to cover
// their latency, and no more registers than there are.
template <int G>
constexpr int SumsOf() {
  for (const int sums : {8, 4, 2}) {
    if (sums * G <= Ops::kSums) {
      return sums;
    }
  }
  return 1;
}

// Whether an instruction set says how many sums of V it holds at once, since it has so few
// registers that fewer columns are better than fewer heads.
template <class SomeOps>
concept HasValueSums = requires {
  SomeOps::kValueSums;
};

// A product with weights in memory, in one instruction where the policy has one.
template <class Policy, int kPart>
inline typename Policy::Acc DotBroadcast(typename Policy::Acc acc,
                                         const typename Policy::Data& data,
                                         const typename Policy::Weight* w) {
  if constexpr (requires { Policy::template DotBroadcast<kPart>(acc, data, w); }) {
    return Policy::template DotBroadcast<kPart>(acc, data, w);
  } else {
    return Policy::Dot(acc, data, Policy::template Broadcast<kPart>(w));
  }
}

// Parts kPart and after of a line of K, whose first part is added to sum `first`; `q` of head 0.
template <class Policy, int kPart, int G, int kSums>
[[gnu::always_inline]] inline void ScoreLine(const typename Policy::Element* line,
                                             const typename Policy::Weight* q, int head_dim,
                                             int first, typename Policy::Acc (&acc)[G][kSums]) {
  const auto data = Policy::template Load<kPart>(line);
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) {
    auto& sum = acc[g][(first + kPart) % kSums];
    sum = DotBroadcast<Policy, kPart>(sum, data, q + g * head_dim);
  }
  if constexpr (kPart + 1 < Policy::kParts) {
    ScoreLine<Policy, kPart + 1>(line, q, head_dim, first, acc);
  }
}

// In how many equal parts the next tile is asked for, in turns: the more streams, the more of it
// the hardware's prefetchers add.
template <class SomeOps = Ops>
constexpr int StreamsOf() {
  if constexpr (requires { SomeOps::kStreams; }) {
    return SomeOps::kStreams;
  } else {
    return 1;
  }
}

// What a loop over lines asks for in advance: in each turn a line of each part.
struct Ask {
  const char* at = nullptr;
  ptrdiff_t part = kCacheLineBytes;   // from a part to the next
  ptrdiff_t parts = kCacheLineBytes;  // all of them
  ptrdiff_t advance = 0;              // from a turn to the next
};

template <class Policy>
inline bool AsksInParts(const Tile<Policy>& tile) {
  return StreamsOf() > 1 && tile.far;
}

// For a loop that begins at `from` in the K or V tile at `base`: what is at `after` bytes from
// there, or, where that is another tile, parts of it.
template <class Policy>
inline Ask AskFrom(const Tile<Policy>& tile, const void* base, ptrdiff_t after, const void* from) {
  const auto* first = static_cast<const char*>(base) + after;
  const ptrdiff_t offset = static_cast<const char*>(from) - static_cast<const char*>(base);
  Ask ask;
  if (AsksInParts(tile)) {
    ask.parts = static_cast<ptrdiff_t>(MinOf(kTileTokens, tile.block_tokens)) * tile.head_dim *
                static_cast<ptrdiff_t>(sizeof(typename Policy::Element));
    ask.part = ask.parts / StreamsOf();
    ask.at = first + offset / StreamsOf();
  } else {
    ask.at = first + offset;
  }
  return ask;
}

// `kHeads` heads' scores of one sub-tile, line after line: memory is read in order, which is worth
// more than the broadcasts that several sub-tiles at once would share (docs/cpu-attention.md). `q`
// and `scores` of the first head, `scores` from the sub-tile's first token on.
template <class Policy, int kHeads, bool kPrefetch>
inline void ScoreHeads(const typename Policy::Element* k, const Tile<Policy>& tile,
                       const typename Policy::Weight* q, float* scores) {
  constexpr int kSums = SumsOf<kHeads>();
  constexpr int kAtLeast = kPrefetch ? StreamsOf() : 1;
  constexpr int kLines = kSums > kAtLeast * Policy::kParts ? kSums / Policy::kParts : kAtLeast;
  Ask ask;
  if constexpr (kPrefetch) {
    ask = AskFrom(tile, tile.k, tile.after_k, k);
    ask.advance = kLines * kCacheLineBytes / (AsksInParts(tile) ? StreamsOf() : 1);
  }
  typename Policy::Acc acc[kHeads][kSums];
#pragma GCC unroll 16
  for (int g = 0; g < kHeads; ++g) {
#pragma GCC unroll 16
    for (int j = 0; j < kSums; ++j) {
      acc[g][j] = Policy::Zero();
    }
  }
  // Head dims are multiples of 16, so their lines are a multiple of kLines.
  for (int d = 0; d < tile.head_dim; d += kLines * Policy::kPerLane) {
#pragma GCC unroll 16
    for (int j = 0; j < kLines; ++j) {
      const int dim = d + j * Policy::kPerLane;
      const typename Policy::Element* line = k + dim * kLanes;
      if constexpr (kPrefetch) {
        PrefetchAhead<Policy>(ask.at, j % kAtLeast * ask.part + j / kAtLeast * kCacheLineBytes);
      }
      ScoreLine<Policy, 0>(line, q + dim, tile.head_dim, j * Policy::kParts, acc);
    }
    ask.at += ask.advance;
  }
#pragma GCC unroll 16
  for (int g = 0; g < kHeads; ++g) {
#pragma GCC unroll 16
    for (int j = 1; j < kSums; ++j) {
      acc[g][0] = Policy::Add(acc[g][0], acc[g][j]);
    }
    Ops::Store(scores + g * kTileTokens, Policy::ToFloat(acc[g][0]));
  }
}

// All heads, as many at once as there are registers for; the others find the sub-tile in the
// first-level cache.
template <class Policy, int G, bool kPrefetch>
inline void ScoreSubTile(const Tile<Policy>& tile, const QueryRows<Policy>& rows, int sub_tile,
                         float (*scores)[kTileTokens]) {
  const typename Policy::Element* k = tile.k + sub_tile * kLanes * tile.head_dim;
  float* to = scores[0] + sub_tile * kLanes;
  if constexpr (G <= Ops::kSums) {
    ScoreHeads<Policy, G, kPrefetch>(k, tile, rows.q, to);
  } else {
    static_assert(G <= 2 * Ops::kSums);
    constexpr int kFirst = (G + 1) / 2;
    ScoreHeads<Policy, kFirst, kPrefetch>(k, tile, rows.q, to);
    ScoreHeads<Policy, G - kFirst, false>(k, tile, rows.q + kFirst * tile.head_dim,
                                          to + kFirst * kTileTokens);
  }
}

// Columns of V that stand together: lines of the same columns follow each other at `stride`.
template <class Policy>
struct Columns {
  const typename Policy::Element* v = nullptr;
  int stride = 0;
  Ask ask;
};

// Parts kPart and after of lines that are next to each other, times weights [kHeads, kTileTokens]
// of their tokens.
template <class Policy, int kPart, int kHeads, int kVectors>
[[gnu::always_inline]] inline void AccumulateLines(const typename Policy::Element* lines,
                                                   const typename Policy::Weight* weights,
                                                   typename Policy::Acc (&acc)[kHeads][kVectors]) {
  typename Policy::Data data[kVectors];
#pragma GCC unroll 16
  for (int c = 0; c < kVectors; ++c) {
    data[c] = Policy::template Load<kPart>(lines + c * kLanes * Policy::kPerLane);
  }
#pragma GCC unroll 16
  for (int g = 0; g < kHeads; ++g) {
    const auto w = Policy::template Broadcast<kPart>(weights + g * kTileTokens);
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) {
      acc[g][c] = Policy::Dot(acc[g][c], data[c], w);
    }
  }
  if constexpr (kPart + 1 < Policy::kParts) {
    AccumulateLines<Policy, kPart + 1>(lines, weights, acc);
  }
}

// acc [kHeads, kVectors * 16 columns] = acc * correction + weights * V for the heads from
// `first_head` on; `out` is the first column of head 0.
template <class Policy, int G, int kHeads, int kVectors, bool kPrefetch>
inline void AccumulateColumns(const Tile<Policy>& tile, const Columns<Policy>& columns,
                              const TileScratch<Policy, G>& scratch, int first_head, float* out) {
  const typename Policy::Weight* weights = scratch.weights[first_head];
  const float* correction = &scratch.correction[first_head];
  out += first_head * tile.head_dim;
  typename Policy::Acc acc[kHeads][kVectors];
#pragma GCC unroll 16
  for (int g = 0; g < kHeads; ++g) {
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) {
      if constexpr (Policy::kInteger) {
        acc[g][c] = Policy::Zero();
      } else {
        acc[g][c] =
            Ops::Mul(Ops::Load(out + g * tile.head_dim + c * kLanes), Ops::Set1(correction[g]));
      }
    }
  }
  constexpr int kPerLane = Policy::kPerLane;
  constexpr int kElements = kVectors * kLanes * kPerLane;
  alignas(64) typename Policy::Element last[kElements];
  if (tile.tokens % kPerLane != 0) {
    MaskLanes(columns.v + tile.tokens / kPerLane * columns.stride, kVectors * kLanes,
              tile.tokens % kPerLane, last);
  }
  const typename Policy::Element* v = columns.v;
  Ask ask = columns.ask;
  ptrdiff_t part = 0;
  for (int t = 0; t < tile.tokens; t += kPerLane, v += columns.stride) {
    if constexpr (kPrefetch) {
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; ++c) {
        PrefetchAhead<Policy>(ask.at + part, c * ask.part);
      }
      part += kVectors * ask.part;
      if (part >= ask.parts) {
        part = 0;
        ask.at += ask.advance;
      }
    }
    const auto* lines = t + kPerLane <= tile.tokens ? v : last;
    AccumulateLines<Policy, 0>(lines, weights + t, acc);
  }
#pragma GCC unroll 16
  for (int g = 0; g < kHeads; ++g) {
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) {
      float* to = out + g * tile.head_dim + c * kLanes;
      Ops::Vec sum = Policy::ToFloat(acc[g][c]);
      if constexpr (Policy::kInteger) {
        sum = Ops::MulAdd(sum, Ops::Set1(scratch.weight_scale[first_head + g]),
                          Ops::Mul(Ops::Load(to), Ops::Set1(correction[g])));
      }
      Ops::Store(to, sum);
    }
  }
}

// Heads whose sums of so many vectors of V fit in registers.
template <class Policy, int kVectors, class SomeOps = Ops>
constexpr int MostHeads() {
  if constexpr (HasValueSums<SomeOps>) {
    return SomeOps::kValueSums / kVectors;
  } else {
    return (SomeOps::kRegisters - Policy::kRegisters * (kVectors + 1)) / kVectors;
  }
}

// Vectors of V at once.
template <int G, class SomeOps = Ops>
constexpr int ColumnsOf() {
  int columns = SomeOps::kColumns;
  if constexpr (HasValueSums<SomeOps>) {
    while (columns > 1 && columns * G > SomeOps::kValueSums) {
      columns /= 2;
    }
  }
  return columns;
}

// All heads, as many at once as there are registers for their sums; the others find the columns in
// the first-level cache.
template <class Policy, int G, int kVectors, bool kPrefetch>
inline void AccumulateHeads(const Tile<Policy>& tile, const Columns<Policy>& columns,
                            const TileScratch<Policy, G>& scratch, float* out) {
  constexpr int kMost = MostHeads<Policy, kVectors>();
  if constexpr (G <= kMost) {
    AccumulateColumns<Policy, G, G, kVectors, kPrefetch>(tile, columns, scratch, 0, out);
  } else {
    static_assert(G <= 2 * kMost);
    constexpr int kFirst = (G + 1) / 2;
    AccumulateColumns<Policy, G, kFirst, kVectors, kPrefetch>(tile, columns, scratch, 0, out);
    AccumulateColumns<Policy, G, G - kFirst, kVectors, false>(tile, columns, scratch, kFirst, out);
  }
}

// To the next kVectors vectors of columns.
template <int kVectors, class Policy>
inline void Advance(const Tile<Policy>& tile, Columns<Policy>* columns) {
  columns->v += kVectors * kLanes * Policy::kPerLane;
  if (AsksInParts(tile)) {
    const int steps = (tile.tokens + Policy::kPerLane - 1) / Policy::kPerLane;
    columns->ask.at += steps * kVectors * kCacheLineBytes / StreamsOf();
  } else {
    columns->ask.at += kVectors * kCacheLineBytes;
  }
}

template <class Policy, int G, bool kPrefetch>
void AttendTile(const Tile<Policy>& tile, const QueryRows<Policy>& rows) {
  TileScratch<Policy, G> scratch;
  const int sub_tiles = (tile.tokens + kLanes - 1) / kLanes;
  for (int s = 0; s < sub_tiles; ++s) {
    ScoreSubTile<Policy, G, kPrefetch>(tile, rows, s, scratch.scores);
  }
  Softmax(tile, rows, G, &scratch);
  if constexpr (kPrefetch) {
    PrefetchFirst<Policy>(tile.next);
  }

  constexpr int kColumns = ColumnsOf<G>();
  const int chunk = Policy::VChunk(tile.head_dim);
  for (int begin = 0; begin < tile.head_dim; begin += chunk) {
    const int width = MinOf(chunk, tile.head_dim - begin);
    Columns<Policy> columns;
    columns.v = tile.v + begin * tile.block_tokens + tile.first_row * width;
    columns.stride = width * Policy::kPerLane;
    columns.ask = AskFrom(tile, tile.v, tile.after_v, columns.v);
    columns.ask.advance = AsksInParts(tile)
                              ? kCacheLineBytes
                              : columns.stride * static_cast<ptrdiff_t>(sizeof(*columns.v));
    float* out = rows.acc + begin;
    int column = 0;
    for (; column + kColumns * kLanes <= width; column += kColumns * kLanes) {
      AccumulateHeads<Policy, G, kColumns, kPrefetch>(tile, columns, scratch, out + column);
      Advance<kColumns>(tile, &columns);
    }
    for (; column < width; column += kLanes) {
      AccumulateHeads<Policy, G, 1, kPrefetch>(tile, columns, scratch, out + column);
      Advance<1>(tile, &columns);
    }
  }
}

// Calls AttendTile for `count` (1 to G) query heads.
template <class Policy, int G>
inline void DispatchGroup(int count, const Tile<Policy>& tile, const QueryRows<Policy>& rows) {
  if constexpr (G > 1) {
    if (count < G) {
      DispatchGroup<Policy, G - 1>(count, tile, rows);
      return;
    }
  }
  if constexpr (Policy::kMayPrefetch) {
    if (tile.prefetch) {
      AttendTile<Policy, G, true>(tile, rows);
      return;
    }
  }
  AttendTile<Policy, G, false>(tile, rows);
}

template <class Policy>
inline void AttendGroup(int group, const Tile<Policy>& tile, QueryRows<Policy> rows) {
  // Even shares: 9 query heads are 5 + 4, not 8 + 1.
  const int rounds = (group + Ops::kMaxGroup - 1) / Ops::kMaxGroup;
  for (int round = 0; round < rounds; ++round) {
    const int count = group / rounds + (round < group % rounds ? 1 : 0);
    DispatchGroup<Policy, Ops::kMaxGroup>(count, tile, rows);
    rows.Advance(count, tile.head_dim);
  }
}

}  // namespace
}  // namespace tandem::attention
