#pragma once

// Body of the paged decode kernels, included once by each file of isa/ after it has defined `Ops`,
// the vector operations of its instruction set. Everything is in an unnamed namespace and nothing
// of the standard library's templates is used: an inline function shared between files compiled for
// different instruction sets could end up in its fastest form on a CPU that lacks it.
//
// Shape of the computation (layout: docs/kv_layout.md). One pass over the blocks, all KV heads of a
// block before the next block. Per head and tile of up to 128 tokens:
//   1. scores: lanes are the 16 tokens of a K sub-tile, so a score never needs a horizontal add;
//      each loaded K feeds all query heads of the group;
//   2. online softmax: one maximum and one sum per tile;
//   3. values: lanes are 16 columns of V; each loaded V feeds all query heads of the group.
// Accumulators stay in registers inside a step and in `out` between tiles.

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "common/attention_kernels/isa/isa_kernels.h"

namespace tandem::attention {
namespace {

constexpr int kLanes = 16;  // of Ops::Vec; equals kv::kSubTileTokens
constexpr int kTileTokens = 128;
constexpr int kVChunkColumns = 64;  // of the pair layouts
// Query elements prepared at once, on the stack; with the widest heads 64 query heads.
constexpr int kQueryScratch = 16384;
constexpr float kMinusInfinity = -INFINITY;
// Scores are kept finite so that differences of two of them never are NaN.
constexpr float kLargestScore = 3.0e38f;

inline int MinOf(int a, int b) { return a < b ? a : b; }

inline float FloatOf(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint16_t Bf16Of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// e^x for x <= 0, zero below -87 (the result would leave the normal range). Reduction by multiples
// of ln 2 in two parts, then the Taylor polynomial of degree 7 on [-0.347, 0.347], whose remainder
// is below 6e-9; measured relative error below 2e-7.
inline Ops::Vec Exp(Ops::Vec x) {
  const Ops::Vec clamped = Ops::Max(Ops::Set1(-88.0f), x);  // in this order NaN stays NaN
  const Ops::Vec n = Ops::Round(Ops::Mul(clamped, Ops::Set1(1.44269504f)));
  Ops::Vec r = Ops::MulAdd(n, Ops::Set1(-0.693145752f), clamped);
  r = Ops::MulAdd(n, Ops::Set1(-1.42860677e-6f), r);
  Ops::Vec p = Ops::Set1(1.0f / 5040.0f);
  p = Ops::MulAdd(p, r, Ops::Set1(1.0f / 720.0f));
  p = Ops::MulAdd(p, r, Ops::Set1(1.0f / 120.0f));
  p = Ops::MulAdd(p, r, Ops::Set1(1.0f / 24.0f));
  p = Ops::MulAdd(p, r, Ops::Set1(1.0f / 6.0f));
  p = Ops::MulAdd(p, r, Ops::Set1(0.5f));
  p = Ops::MulAdd(p, r, Ops::Set1(1.0f));
  p = Ops::MulAdd(p, r, Ops::Set1(1.0f));
  return Ops::ZeroWhereBelow(Ops::ScaleByPowerOf2(p, n), x, -87.0f);
}

// A policy says what one step of a dot product loads and how it is multiplied. A step covers
// `kPerStep` dimensions of K (tokens of V); weights (queries, probabilities) are `kPerStep`
// consecutive elements.
struct Float32Policy {
  using Element = float;
  using Weight = float;
  using Data = Ops::Vec;
  using Factor = Ops::Vec;
  static constexpr int kPerStep = 1;
  static int VChunk(int head_dim) { return head_dim; }
  static Data Load(const Element* p) { return Ops::Load(p); }
  static Data LoadFirst(const Element* p) { return Ops::Load(p); }
  static Factor Broadcast(const Weight* w) { return Ops::Set1(*w); }
  static Ops::Vec Dot(Ops::Vec acc, Data data, Factor w) { return Ops::MulAdd(data, w, acc); }
  static void StoreWeights(Weight* out, Ops::Vec p) { Ops::Store(out, p); }
};

// bfloat16 pairs widened to float32 in registers, for instruction sets without a pair product.
struct WidenedBf16Policy {
  struct Data {
    Ops::Vec even;
    Ops::Vec odd;
  };
  struct Factor {
    Ops::Vec even;
    Ops::Vec odd;
  };
  using Element = uint16_t;
  using Weight = float;
  static constexpr int kPerStep = 2;
  static int VChunk(int) { return kVChunkColumns; }
  static Data Load(const Element* p) { return {Ops::LoadEvenBf16(p), Ops::LoadOddBf16(p)}; }
  static Data LoadFirst(const Element* p) { return {Ops::LoadEvenBf16(p), Ops::Set1(0.0f)}; }
  static Factor Broadcast(const Weight* w) { return {Ops::Set1(w[0]), Ops::Set1(w[1])}; }
  static Ops::Vec Dot(Ops::Vec acc, const Data& data, const Factor& w) {
    return Ops::MulAdd(data.odd, w.odd, Ops::MulAdd(data.even, w.even, acc));
  }
  static void StoreWeights(Weight* out, Ops::Vec p) { Ops::Store(out, p); }
};

// One head's K and V rows that a tile covers.
template <class Policy>
struct Tile {
  const typename Policy::Element* k = nullptr;  // first sub-tile of the tile
  const typename Policy::Element* v = nullptr;  // start of the block's V tile
  int first_row = 0;                            // of the tile, in the block
  int tokens = 0;                               // 1 to kTileTokens
  int block_tokens = 0;
  int head_dim = 0;
  float scale = 1.0f;
};

// The query heads that share the tile, and their running state.
template <class Policy>
struct QueryRows {
  const typename Policy::Weight* q = nullptr;  // [G, head_dim]
  float* acc = nullptr;                        // [G, head_dim], unnormalised
  float* max = nullptr;                        // [G]
  float* sum = nullptr;                        // [G]
};

template <class Policy, int G, int kSubTiles>
inline void ScoreSubTiles(const Tile<Policy>& tile, const QueryRows<Policy>& rows, int first,
                          float (*scores)[kTileTokens]) {
  const int steps = tile.head_dim / Policy::kPerStep;
  const int sub_tile_elements = kLanes * tile.head_dim;
  const typename Policy::Element* k = tile.k + first * sub_tile_elements;
  Ops::Vec acc[G][kSubTiles];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
    for (int s = 0; s < kSubTiles; ++s) {
      acc[g][s] = Ops::Set1(0.0f);
    }
  }
  for (int i = 0; i < steps; ++i) {
    typename Policy::Data data[kSubTiles];
#pragma GCC unroll 8
    for (int s = 0; s < kSubTiles; ++s) {
      data[s] = Policy::Load(k + s * sub_tile_elements + i * kLanes * Policy::kPerStep);
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const auto w = Policy::Broadcast(rows.q + g * tile.head_dim + i * Policy::kPerStep);
#pragma GCC unroll 8
      for (int s = 0; s < kSubTiles; ++s) {
        acc[g][s] = Policy::Dot(acc[g][s], data[s], w);
      }
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
    for (int s = 0; s < kSubTiles; ++s) {
      Ops::Store(&scores[g][(first + s) * kLanes], acc[g][s]);
    }
  }
}

// Scaled scores of one query head become probabilities relative to its new maximum. Returns old
// maximum minus new.
template <class Policy>
inline float SoftmaxRow(const Tile<Policy>& tile, float* scores, typename Policy::Weight* weights,
                        float* max, float* tile_sum) {
  const int sub_tiles = (tile.tokens + kLanes - 1) / kLanes;
  const Ops::Vec scale = Ops::Set1(tile.scale);
  Ops::Vec top = Ops::Set1(kMinusInfinity);
  for (int s = 0; s < sub_tiles; ++s) {
    Ops::Vec score = Ops::Mul(Ops::Load(scores + s * kLanes), scale);
    score = Ops::Max(Ops::Set1(-kLargestScore), Ops::Min(Ops::Set1(kLargestScore), score));
    // Stale rows are replaced, not multiplied: they may hold NaN.
    score = Ops::KeepFirst(score, tile.tokens - s * kLanes, kMinusInfinity);
    Ops::Store(scores + s * kLanes, score);
    top = Ops::Max(top, score);
  }
  const float old_max = *max;
  const float tile_max = Ops::ReduceMax(top);
  const float new_max = old_max > tile_max ? old_max : tile_max;
  const Ops::Vec negative_max = Ops::Set1(-new_max);
  Ops::Vec sum = Ops::Set1(0.0f);
  for (int s = 0; s < sub_tiles; ++s) {
    const Ops::Vec p = Exp(Ops::Add(Ops::Load(scores + s * kLanes), negative_max));
    sum = Ops::Add(sum, p);
    Policy::StoreWeights(weights + s * kLanes, p);
  }
  *max = new_max;
  *tile_sum = Ops::ReduceAdd(sum);
  return old_max - new_max;
}

// Columns of V that stand together: rows (pairs of rows) follow each other at `row_stride`.
template <class Policy>
struct Columns {
  const typename Policy::Element* v = nullptr;
  int row_stride = 0;
};

// acc [G, kVectors * 16 columns] = acc * correction + weights * V; `out` is the first column's.
template <class Policy, int G, int kVectors>
inline void AccumulateColumns(const Tile<Policy>& tile, const Columns<Policy>& columns,
                              const typename Policy::Weight (*weights)[kTileTokens],
                              const float* correction, float* out) {
  Ops::Vec acc[G][kVectors];
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) {
      acc[g][c] =
          Ops::Mul(Ops::Load(out + g * tile.head_dim + c * kLanes), Ops::Set1(correction[g]));
    }
  }
  const int steps = tile.tokens / Policy::kPerStep;
  for (int i = 0; i < steps; ++i) {
    typename Policy::Data data[kVectors];
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) {
      data[c] = Policy::Load(columns.v + i * columns.row_stride + c * kLanes * Policy::kPerStep);
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; ++g) {
      const auto w = Policy::Broadcast(&weights[g][i * Policy::kPerStep]);
#pragma GCC unroll 8
      for (int c = 0; c < kVectors; ++c) {
        acc[g][c] = Policy::Dot(acc[g][c], data[c], w);
      }
    }
  }
  if (tile.tokens % Policy::kPerStep != 0) {
    // The last pair's second token is stale: not even zero times it may enter.
    for (int c = 0; c < kVectors; ++c) {
      const auto data =
          Policy::LoadFirst(columns.v + steps * columns.row_stride + c * kLanes * Policy::kPerStep);
      for (int g = 0; g < G; ++g) {
        const auto w = Policy::Broadcast(&weights[g][steps * Policy::kPerStep]);
        acc[g][c] = Policy::Dot(acc[g][c], data, w);
      }
    }
  }
#pragma GCC unroll 8
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
    for (int c = 0; c < kVectors; ++c) {
      Ops::Store(out + g * tile.head_dim + c * kLanes, acc[g][c]);
    }
  }
}

template <class Policy, int G>
void AttendTile(const Tile<Policy>& tile, const QueryRows<Policy>& rows) {
  // As many accumulators as the registers hold beside the loaded data.
  constexpr int kWide = Ops::kAccumulators / G >= 8   ? 8
                        : Ops::kAccumulators / G >= 4 ? 4
                        : Ops::kAccumulators / G >= 2 ? 2
                                                      : 1;
  alignas(64) float scores[G][kTileTokens];
  alignas(64) typename Policy::Weight weights[G][kTileTokens];
  const int sub_tiles = (tile.tokens + kLanes - 1) / kLanes;
  int s = 0;
  for (; s + kWide <= sub_tiles; s += kWide) {
    ScoreSubTiles<Policy, G, kWide>(tile, rows, s, scores);
  }
  for (; s < sub_tiles; ++s) {
    ScoreSubTiles<Policy, G, 1>(tile, rows, s, scores);
  }

  alignas(64) float correction[kLanes] = {};
  float tile_sum[G];
  for (int g = 0; g < G; ++g) {
    correction[g] = SoftmaxRow<Policy>(tile, scores[g], weights[g], rows.max + g, tile_sum + g);
  }
  Ops::Store(correction, Exp(Ops::Load(correction)));
  for (int g = 0; g < G; ++g) {
    rows.sum[g] = rows.sum[g] * correction[g] + tile_sum[g];
  }

  constexpr int kColumns = kWide > 4 ? 4 : kWide;
  const int chunk = Policy::VChunk(tile.head_dim);
  for (int begin = 0; begin < tile.head_dim; begin += chunk) {
    const int width = MinOf(chunk, tile.head_dim - begin);
    const typename Policy::Element* v = tile.v + begin * tile.block_tokens + tile.first_row * width;
    const int row_stride = width * Policy::kPerStep;
    int column = 0;
    for (; column + kColumns * kLanes <= width; column += kColumns * kLanes) {
      AccumulateColumns<Policy, G, kColumns>(tile, {v + column * Policy::kPerStep, row_stride},
                                             weights, correction, rows.acc + begin + column);
    }
    for (; column < width; column += kLanes) {
      AccumulateColumns<Policy, G, 1>(tile, {v + column * Policy::kPerStep, row_stride}, weights,
                                      correction, rows.acc + begin + column);
    }
  }
}

// Calls AttendTile for `count` (1 to G) query heads.
template <class Policy, int G>
inline void DispatchGroup(int count, const Tile<Policy>& tile, const QueryRows<Policy>& rows) {
  if constexpr (G == 1) {
    AttendTile<Policy, 1>(tile, rows);
  } else {
    if (count == G) {
      AttendTile<Policy, G>(tile, rows);
    } else {
      DispatchGroup<Policy, G - 1>(count, tile, rows);
    }
  }
}

template <class Policy>
inline void AttendAllOfGroup(int group, const Tile<Policy>& tile, QueryRows<Policy> rows) {
  // Even shares: 9 query heads are 5 + 4, not 8 + 1.
  const int rounds = (group + Ops::kMaxGroup - 1) / Ops::kMaxGroup;
  for (int round = 0; round < rounds; ++round) {
    const int count = group / rounds + (round < group % rounds ? 1 : 0);
    DispatchGroup<Policy, Ops::kMaxGroup>(count, tile, rows);
    rows.q += count * tile.head_dim;
    rows.acc += count * tile.head_dim;
    rows.max += count;
    rows.sum += count;
  }
}

// Query rows in the form that the policy multiplies with: the caller's own where types agree.
inline const float* PrepareQuery(const SegmentArgs& args, int first, int count, float* scratch) {
  if (args.q_dtype == DType::kFloat32) {
    return static_cast<const float*>(args.q) + first;
  }
  const uint16_t* q = static_cast<const uint16_t*>(args.q) + first;
  for (int i = 0; i < count; ++i) {
    scratch[i] = FloatOf(q[i]);
  }
  return scratch;
}

inline const uint16_t* PrepareQuery(const SegmentArgs& args, int first, int count,
                                    uint16_t* scratch) {
  if (args.q_dtype == DType::kBFloat16) {
    return static_cast<const uint16_t*>(args.q) + first;
  }
  const float* q = static_cast<const float*>(args.q) + first;
  for (int i = 0; i < count; ++i) {
    scratch[i] = Bf16Of(q[i]);
  }
  return scratch;
}

// Query heads [first_q, first_q + heads * group) of KV heads [first_head, first_head + heads).
struct HeadRange {
  int first_head;
  int heads;
  int first_q;
  int group;
};

template <class Policy>
void AttendHeads(const kv::PoolGeometry& geometry, const SegmentArgs& args,
                 const HeadRange& range) {
  const int head_dim = geometry.head_dim;
  const int num_q = range.heads * range.group;
  alignas(64) typename Policy::Weight query_scratch[kQueryScratch];
  const typename Policy::Weight* q =
      PrepareQuery(args, range.first_q * head_dim, num_q * head_dim, query_scratch);
  float* acc = args.out + range.first_q * head_dim;
  float* max = args.log_sum_exp + range.first_q;
  float sum[kQueryScratch / kLanes];
  memset(acc, 0, sizeof(float) * static_cast<size_t>(num_q * head_dim));
  for (int i = 0; i < num_q; ++i) {
    max[i] = kMinusInfinity;
    sum[i] = 0.0f;
  }

  const size_t v_offset = geometry.k_tile_bytes();
  const int64_t end = args.first_token + args.num_tokens;
  for (int64_t position = args.first_token; position < end;) {
    Tile<Policy> tile;
    tile.block_tokens = geometry.block_tokens;
    tile.head_dim = head_dim;
    tile.scale = args.scale;
    tile.first_row = static_cast<int>(position % geometry.block_tokens);
    const int64_t left = end - position;
    const int room = MinOf(kTileTokens, geometry.block_tokens - tile.first_row);
    tile.tokens = left < room ? static_cast<int>(left) : room;
    const int32_t block = args.block_table[position / geometry.block_tokens];
    for (int head = 0; head < range.heads; ++head) {
      const std::byte* base =
          args.pool + geometry.HeadOffset(block, args.layer, range.first_head + head);
      tile.k = reinterpret_cast<const typename Policy::Element*>(base) + tile.first_row * head_dim;
      tile.v = reinterpret_cast<const typename Policy::Element*>(base + v_offset);
      const int row = head * range.group;
      AttendAllOfGroup<Policy>(range.group, tile,
                               {q + row * head_dim, acc + row * head_dim, max + row, sum + row});
    }
    position += tile.tokens;
  }

  for (int i = 0; i < num_q; ++i) {
    const Ops::Vec inverse = Ops::Set1(1.0f / sum[i]);
    for (int d = 0; d < head_dim; d += kLanes) {
      float* out = acc + i * head_dim + d;
      Ops::Store(out, Ops::Mul(Ops::Load(out), inverse));
    }
    max[i] += logf(sum[i]);
  }
}

template <class Policy>
void AttendSegment(const kv::PoolGeometry& geometry, const SegmentArgs& args) {
  const int most_q = kQueryScratch / geometry.head_dim;
  if (args.group_size > most_q) {
    for (int head = args.kv_head_begin; head < args.kv_head_end; ++head) {
      for (int g = 0; g < args.group_size; g += most_q) {
        AttendHeads<Policy>(
            geometry, args,
            {head, 1, head * args.group_size + g, MinOf(most_q, args.group_size - g)});
      }
    }
    return;
  }
  const int most_heads = most_q / args.group_size;
  for (int head = args.kv_head_begin; head < args.kv_head_end; head += most_heads) {
    AttendHeads<Policy>(geometry, args,
                        {head, MinOf(most_heads, args.kv_head_end - head), head * args.group_size,
                         args.group_size});
  }
}

}  // namespace
}  // namespace tandem::attention
