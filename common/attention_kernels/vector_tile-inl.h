#pragma once

// Tiles by vector instructions. One pass; accumulators stay in registers inside a step and in
// `acc` between tiles.

#include "common/attention_kernels/tile-inl.h"

namespace tandem::attention {
namespace {

// Lines of K that are worked on in turns, each with sums of its own: enough chains of products to
// cover their latency, and no more registers than there are.
template <int G>
constexpr int LinesOf() {
  for (const int lines : {8, 4, 2}) {
    if (lines * G <= Ops::kSums) {
      return lines;
    }
  }
  return 1;
}

// A product with weights in memory, in one instruction where the policy has one.
template <class Policy>
inline typename Policy::Acc DotBroadcast(typename Policy::Acc acc,
                                         const typename Policy::Data& data,
                                         const typename Policy::Weight* w) {
  if constexpr (requires { Policy::DotBroadcast(acc, data, w); }) {
    return Policy::DotBroadcast(acc, data, w);
  } else {
    return Policy::Dot(acc, data, Policy::Broadcast(w));
  }
}

// One sub-tile, line after line: memory is read in order, which is worth more than the broadcasts
// that several sub-tiles at once would share (docs/cpu-attention.md).
template <class Policy, int G, bool kPrefetch>
inline void ScoreSubTile(const Tile<Policy>& tile, const QueryRows<Policy>& rows, int sub_tile,
                         float (*scores)[kTileTokens]) {
  constexpr int kLines = LinesOf<G>();
  const int steps = tile.head_dim / Policy::kPerStep;
  const typename Policy::Element* k = tile.k + sub_tile * kLanes * tile.head_dim;
  typename Policy::Acc acc[G][kLines];
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 16
    for (int j = 0; j < kLines; ++j) {
      acc[g][j] = Policy::Zero();
    }
  }
  // Head dims are multiples of 16, so steps are of 8.
  for (int i = 0; i < steps; i += kLines) {
#pragma GCC unroll 16
    for (int j = 0; j < kLines; ++j) {
      const typename Policy::Element* from = k + (i + j) * kLanes * Policy::kPerStep;
      const auto data = Policy::Load(from);
      if constexpr (kPrefetch) {
        // Two steps of bytes are a line.
        if (sizeof(typename Policy::Element) > 1 || kLines == 1 || j % 2 == 0) {
          PrefetchAhead<Policy>(from, tile.after_k);
        }
      }
#pragma GCC unroll 16
      for (int g = 0; g < G; ++g) {
        acc[g][j] = DotBroadcast<Policy>(acc[g][j], data,
                                         rows.q + g * tile.head_dim + (i + j) * Policy::kPerStep);
      }
    }
  }
#pragma GCC unroll 16
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 16
    for (int j = 1; j < kLines; ++j) {
      acc[g][0] = Policy::Add(acc[g][0], acc[g][j]);
    }
    Ops::Store(&scores[g][sub_tile * kLanes], Policy::ToFloat(acc[g][0]));
  }
}

// Columns of V that stand together: rows (pairs of rows) follow each other at `row_stride`.
template <class Policy>
struct Columns {
  const typename Policy::Element* v = nullptr;
  int row_stride = 0;
  ptrdiff_t after = 0;  // what is that many bytes from them is read next
};

// acc [kHeads, kVectors * 16 columns] = acc * correction + weights * V for the heads from
// `first_head` on; `out` is the first column of head 0.
template <class Policy, int G, int kHeads, int kVectors, bool kPrefetch>
inline void AccumulateColumns(const Tile<Policy>& tile, const Columns<Policy>& columns,
                              const TileScratch<Policy, G>& scratch, int first_head, float* out) {
  const auto* weights = &scratch.weights[first_head];
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
  const int steps = tile.tokens / Policy::kPerStep;
  for (int i = 0; i < steps; ++i) {
    typename Policy::Data data[kVectors];
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) {
      const typename Policy::Element* from =
          columns.v + i * columns.row_stride + c * kLanes * Policy::kPerStep;
      data[c] = Policy::Load(from);
      if constexpr (kPrefetch) {
        if (sizeof(typename Policy::Element) > 1 || c % 2 == 0) {
          PrefetchAhead<Policy>(from, columns.after);
        }
      }
    }
#pragma GCC unroll 16
    for (int g = 0; g < kHeads; ++g) {
      const auto w = Policy::Broadcast(&weights[g][i * Policy::kPerStep]);
#pragma GCC unroll 16
      for (int c = 0; c < kVectors; ++c) {
        acc[g][c] = Policy::Dot(acc[g][c], data[c], w);
      }
    }
  }
  if (tile.tokens % Policy::kPerStep != 0) {
    // The last pair's second token is stale: not even zero times it may enter.
#pragma GCC unroll 16
    for (int c = 0; c < kVectors; ++c) {
      const auto data =
          Policy::LoadFirst(columns.v + steps * columns.row_stride + c * kLanes * Policy::kPerStep);
#pragma GCC unroll 16
      for (int g = 0; g < kHeads; ++g) {
        const auto w = Policy::Broadcast(&weights[g][steps * Policy::kPerStep]);
        acc[g][c] = Policy::Dot(acc[g][c], data, w);
      }
    }
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

// All heads, as many at once as there are registers for their sums; the others find the columns in
// the first-level cache.
template <class Policy, int G, int kVectors, bool kPrefetch>
inline void AccumulateHeads(const Tile<Policy>& tile, const Columns<Policy>& columns,
                            const TileScratch<Policy, G>& scratch, float* out) {
  constexpr int kMost = (Ops::kRegisters - Policy::kRegisters * (kVectors + 1)) / kVectors;
  if constexpr (G <= kMost) {
    AccumulateColumns<Policy, G, G, kVectors, kPrefetch>(tile, columns, scratch, 0, out);
  } else {
    static_assert(G <= 2 * kMost);
    constexpr int kFirst = (G + 1) / 2;
    AccumulateColumns<Policy, G, kFirst, kVectors, kPrefetch>(tile, columns, scratch, 0, out);
    AccumulateColumns<Policy, G, G - kFirst, kVectors, false>(tile, columns, scratch, kFirst, out);
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

  constexpr int kColumns = Ops::kColumns;
  const int chunk = Policy::VChunk(tile.head_dim);
  for (int begin = 0; begin < tile.head_dim; begin += chunk) {
    const int width = MinOf(chunk, tile.head_dim - begin);
    Columns<Policy> columns;
    columns.v = tile.v + begin * tile.block_tokens + tile.first_row * width;
    columns.row_stride = width * Policy::kPerStep;
    columns.after = tile.after_v;
    float* out = rows.acc + begin;
    int column = 0;
    for (; column + kColumns * kLanes <= width; column += kColumns * kLanes) {
      AccumulateHeads<Policy, G, kColumns, kPrefetch>(tile, columns, scratch, out + column);
      columns.v += kColumns * kLanes * Policy::kPerStep;
    }
    for (; column < width; column += kLanes) {
      AccumulateHeads<Policy, G, 1, kPrefetch>(tile, columns, scratch, out + column);
      columns.v += kLanes * Policy::kPerStep;
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
