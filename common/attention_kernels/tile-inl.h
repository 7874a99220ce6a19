#pragma once

// What all tile kernels share: constants, exp, the tile and its online softmax. Included after
// `Ops` was defined.

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/attention_kernels/paged_decode.h"
#include "common/attention_kernels/policies-inl.h"

namespace tandem::attention {
namespace {

constexpr int kLanes = 16;  // of Ops::Vec; equals kv::kSubTileTokens
constexpr int kTileTokens = 128;
constexpr int kMaxHeadDim = 256;
// Query elements prepared at once, on the stack; with the widest heads 64 query heads.
constexpr int kQueryScratch = 16384;
// Measured (docs/cpu-attention.md): half as far is nearly as good, twice as far a tenth slower.
constexpr ptrdiff_t kPrefetchAhead = 2048;
constexpr ptrdiff_t kCacheLineBytes = 64;
constexpr float kMinusInfinity = -INFINITY;
// Scores are kept finite so that differences of two of them never are NaN.
constexpr float kLargestScore = 3.0e38f;
// Up to here rounding the largest score moves no weight by more than 1 / 256.
constexpr float kLargestPlainScore = 65536.0f;
// How far scores may lie above the maximum they are taken relative to before that is raised.
constexpr float kMaxSlack = 8.0f;

inline int MinOf(int a, int b) { return a < b ? a : b; }

// Whether an instruction set has a shorter way to powers of 2.
template <class SomeOps>
concept HasExp2 = requires(typename SomeOps::Vec t) {
  SomeOps::Exp2(t);
};

// Whether an instruction set compares all lanes at once.
template <class SomeOps>
concept HasAllAtMost = requires(typename SomeOps::Vec v) {
  SomeOps::AllAtMost(v, v);
};

// Whether no lane is above `bound` or NaN. False where an instruction set has no quick answer.
template <class SomeOps>
inline bool AllAtMost(typename SomeOps::Vec v, float bound) {
  if constexpr (HasAllAtMost<SomeOps>) {
    return SomeOps::AllAtMost(v, SomeOps::Set1(bound));
  } else {
    return false;
  }
}

// e^x for x <= 0 (by Exp2 also for small x above), zero below -87 (the result would leave the
// normal range); NaN stays NaN. Reduction by multiples of ln 2 in two parts, then the Taylor
// polynomial of degree 7 on [-0.347, 0.347], whose remainder is below 6e-9; measured relative error
// below 2e-7. By Exp2 below 2e-7 + 1e-7 |x|, no more than what rounding x has done.
template <class SomeOps>
[[gnu::always_inline]] inline typename SomeOps::Vec ExpOf(typename SomeOps::Vec x) {
  if constexpr (HasExp2<SomeOps>) {
    return SomeOps::Exp2(SomeOps::Mul(x, SomeOps::Set1(1.44269504f)));
  } else {
    const auto clamped = SomeOps::Max(SomeOps::Set1(-88.0f), x);  // in this order NaN stays NaN
    const auto n = SomeOps::Round(SomeOps::Mul(clamped, SomeOps::Set1(1.44269504f)));
    auto r = SomeOps::MulAdd(n, SomeOps::Set1(-0.693145752f), clamped);
    r = SomeOps::MulAdd(n, SomeOps::Set1(-1.42860677e-6f), r);
    auto p = SomeOps::Set1(1.0f / 5040.0f);
    p = SomeOps::MulAdd(p, r, SomeOps::Set1(1.0f / 720.0f));
    p = SomeOps::MulAdd(p, r, SomeOps::Set1(1.0f / 120.0f));
    p = SomeOps::MulAdd(p, r, SomeOps::Set1(1.0f / 24.0f));
    p = SomeOps::MulAdd(p, r, SomeOps::Set1(1.0f / 6.0f));
    p = SomeOps::MulAdd(p, r, SomeOps::Set1(0.5f));
    p = SomeOps::MulAdd(p, r, SomeOps::Set1(1.0f));
    p = SomeOps::MulAdd(p, r, SomeOps::Set1(1.0f));
    return SomeOps::ZeroWhereBelow(SomeOps::ScaleByPowerOf2(p, n), x, -87.0f);
  }
}

[[gnu::always_inline]] inline Ops::Vec Exp(Ops::Vec x) { return ExpOf<Ops>(x); }

// The step between integers of 15 bits that represent values up to `largest`; `inverse` turns a
// value into an integer. Values too small for that are zero. `total`, a sum of the values, makes
// the step NaN where one of them is not finite.
inline float IntegerScale(float largest, float total, float* inverse) {
  constexpr float kLargestInteger = 127.0f * 128.0f;  // its upper byte is at most 127
  constexpr float kSmallest = 1e-33f;
  *inverse = largest > kSmallest ? kLargestInteger / largest : 0.0f;
  return largest * (1.0f / kLargestInteger) + 0.0f * total;
}

// Whether a kernel does its prefetches in one way only, whatever the table says.
template <class Policy>
concept HasOwnRule = requires {
  Policy::PrefetchRule(1);
};

// One head's K and V rows that a tile covers.
template <class Policy>
struct Tile {
  const typename Policy::Element* k = nullptr;  // first sub-tile of the tile
  const typename Policy::Element* v = nullptr;  // start of the block's V tile
  const float* k_scales = nullptr;              // of the tile's first row on; with kScales only
  const float* v_scales = nullptr;
  int first_row = 0;  // of the tile, in the block
  int tokens = 0;     // 1 to kTileTokens
  int block_tokens = 0;
  int head_dim = 0;
  int group_size = 0;  // of the segment
  float scale = 1.0f;
  // With `prefetch`, each line read asks for the one at a distance in bytes, of K and of V.
  bool prefetch = false;
  bool prefetch_values = false;  // during the softmax, at `in_softmax` bytes from V
  bool far = false;              // the distances are tiles, not a few lines
  ptrdiff_t after_k = 0;
  ptrdiff_t after_v = 0;
  ptrdiff_t in_softmax = 0;         // where that begins which K does not ask for
  const std::byte* next = nullptr;  // where else reading goes on after this tile; null: nowhere
};

// Into the first-level cache for what is read within kilobytes, else into the second level.
template <class Policy>
inline void PrefetchAhead(const void* from, ptrdiff_t distance) {
  __builtin_prefetch(static_cast<const char*>(from) + distance, 0, Policy::kPrefetchLocality);
}

// The lines that nothing asks for while it is read, because they come first.
template <class Policy>
inline void PrefetchFirst(const std::byte* next) {
  for (ptrdiff_t at = 0; next != nullptr && at < kPrefetchAhead; at += kCacheLineBytes) {
    PrefetchAhead<Policy>(next, at);
  }
}

// The lanes of a line's last tokens: elements after the first `left` of each, which are stale,
// become zero, since not even zero times them may enter a sum.
template <class Element>
inline void MaskLanes(const Element* from, int lanes, int left, Element* to) {
  const uint32_t keep = (1u << (8 * static_cast<int>(sizeof(Element)) * left)) - 1u;
  constexpr int kPerLane = static_cast<int>(sizeof(uint32_t) / sizeof(Element));
  for (int i = 0; i < lanes * kPerLane; i += kPerLane) {
    uint32_t lane;
    memcpy(&lane, from + i, sizeof(lane));
    lane &= keep;
    memcpy(to + i, &lane, sizeof(lane));
  }
}

// The query heads that share the tile, and their running state.
template <class Policy>
struct QueryRows {
  const typename Policy::Weight* q = nullptr;  // [G, head_dim]
  const float* q_scale = nullptr;              // [G], of integer weights
  float* acc = nullptr;                        // [G, head_dim], unnormalised
  float* max = nullptr;                        // [G]
  float* sum = nullptr;                        // [G, kLanes], by lane

  void Advance(int heads, int head_dim) {
    q += heads * head_dim;
    q_scale += heads;
    acc += heads * head_dim;
    max += heads;
    sum += heads * kLanes;
  }
};

// Scores of a tile and what becomes of them.
template <class Policy, int G>
struct TileScratch {
  alignas(64) float scores[G][kTileTokens];
  alignas(64) typename Policy::Weight weights[G][kTileTokens];
  alignas(64) float correction[kLanes];    // of what was accumulated before; G <= kLanes
  alignas(64) float weight_scale[kLanes];  // of integer weights
  alignas(64) float factor[kLanes];        // that turns raw scores into scaled ones
  // Of each lane the largest score, then the largest integer weight, and the sum of these.
  Ops::Vec top[G];
  // NOLINTNEXTLINE(bugprone-branch-clone): alike for groups of one
  Ops::Vec total[Policy::kInteger ? G : 1];
};

// What V of sub-tile `s` is multiplied with.
template <bool kWhole, class Policy>
inline Ops::Vec ValueWeight(const Tile<Policy>& tile, Ops::Vec p, int s) {
  if constexpr (Policy::kScales) {
    p = Ops::Mul(p, Ops::Load(tile.v_scales + s * kLanes));
    if (!kWhole && tile.tokens < (s + 1) * kLanes) {
      // Stale scales may be NaN: masked after the product.
      p = Ops::KeepFirst(p, tile.tokens - s * kLanes, 0.0f);
    }
  }
  if constexpr (Policy::kFactor != 1.0f) {
    p = Ops::Mul(p, Ops::Set1(Policy::kFactor));
  }
  return p;
}

// Memory would pause while nothing is loaded: each vector of probabilities asks for two lines,
// after those that K asked for.
template <class Policy>
inline void PrefetchInSoftmax(const Tile<Policy>& tile, int vector) {
  const auto* v =
      reinterpret_cast<const char*>(tile.v) + tile.in_softmax + vector * 2 * kCacheLineBytes;
  __builtin_prefetch(v, 0, 2);
  __builtin_prefetch(v + kCacheLineBytes, 0, 2);
}

// Of each lane the largest raw score of a query head. Scores take up the tokens' scales on the way;
// those after the tile's end become minus infinity: replaced, not multiplied, since stale rows may
// hold NaN.
template <bool kWhole, class Policy>
inline Ops::Vec TopScores(const Tile<Policy>& tile, float* scores) {
  Ops::Vec top = Ops::Set1(kMinusInfinity);
  const int vectors = kWhole ? kTileTokens / kLanes : (tile.tokens + kLanes - 1) / kLanes;
#pragma GCC unroll 8
  for (int s = 0; s < vectors; ++s) {
    Ops::Vec score = Ops::Load(scores + s * kLanes);
    if constexpr (Policy::kScales) {
      score = Ops::Mul(score, Ops::Load(tile.k_scales + s * kLanes));
    }
    const bool partial = !kWhole && tile.tokens < (s + 1) * kLanes;
    if (partial) {
      score = Ops::KeepFirst(score, tile.tokens - s * kLanes, kMinusInfinity);
    }
    if (Policy::kScales || partial) {
      Ops::Store(scores + s * kLanes, score);
    }
    top = Ops::Max(top, score);
  }
  return top;
}

// The careful way: raw scores become scaled and finite ones. Returns the largest.
template <class Policy>
inline float ScaleScores(const Tile<Policy>& tile, float factor, float* scores) {
  Ops::Vec top = Ops::Set1(kMinusInfinity);
  for (int s = 0; s * kLanes < tile.tokens; ++s) {
    Ops::Vec score = Ops::Mul(Ops::Load(scores + s * kLanes), Ops::Set1(factor));
    score = Ops::Max(Ops::Set1(-kLargestScore), Ops::Min(Ops::Set1(kLargestScore), score));
    if (tile.tokens < (s + 1) * kLanes) {
      score = Ops::KeepFirst(score, tile.tokens - s * kLanes, kMinusInfinity);
    }
    Ops::Store(scores + s * kLanes, score);
    top = Ops::Max(top, score);
  }
  return Ops::ReduceMax(top);
}

// New maxima, and what was summed up before is scaled to them.
template <class Policy, int G>
inline void RaiseMaxima(const Tile<Policy>& tile, const QueryRows<Policy>& rows, int count,
                        TileScratch<Policy, G>* scratch) {
  for (int g = 0; g < count; ++g) {
    float& factor = scratch->factor[g];
    float tile_max = Ops::ReduceMax(scratch->top[g]) * factor;
    // Else the largest, which is rounded where others are not, may lie far below them; or it is
    // NaN.
    if (!(factor > 0.0f && tile_max <= kLargestPlainScore && tile_max >= -kLargestPlainScore)) {
      tile_max = ScaleScores(tile, factor, scratch->scores[g]);
      factor = 1.0f;
    }
    const float old_max = rows.max[g];
    const float new_max = old_max > tile_max ? old_max : tile_max;
    rows.max[g] = new_max;
    scratch->correction[g] = old_max - new_max;
  }
  Ops::Store(scratch->correction, Exp(Ops::Load(scratch->correction)));
  for (int g = 0; g < count; ++g) {
    float* sum = rows.sum + g * kLanes;
    Ops::Store(sum, Ops::Mul(Ops::Load(sum), Ops::Set1(scratch->correction[g])));
  }
}

// Raw scores of query head `g` become weights relative to its maximum, and are summed up; where
// weights are to be integers they stay in place of the scores. All loops over a tile are compiled
// once for a whole one.
template <bool kWhole, class Policy, int G>
inline void WeighRow(const Tile<Policy>& tile, const QueryRows<Policy>& rows, int g,
                     TileScratch<Policy, G>* scratch) {
  float* scores = scratch->scores[g];
  typename Policy::Weight* weights = scratch->weights[g];
  const int sub_tiles = kWhole ? kTileTokens / kLanes : (tile.tokens + kLanes - 1) / kLanes;
  const Ops::Vec scale = Ops::Set1(scratch->factor[g]);
  const Ops::Vec negative_max = Ops::Set1(-rows.max[g]);
  Ops::Vec sum = Ops::Load(rows.sum + g * kLanes);
  Ops::Vec top = Ops::Set1(0.0f);
  Ops::Vec total = Ops::Set1(0.0f);
#pragma GCC unroll 8
  for (int s = 0; s < sub_tiles; ++s) {
    if (tile.prefetch_values) {
      PrefetchInSoftmax(tile, g * sub_tiles + s);
    }
    const Ops::Vec p = Exp(Ops::MulAdd(Ops::Load(scores + s * kLanes), scale, negative_max));
    sum = Ops::Add(sum, p);
    const Ops::Vec weight = ValueWeight<kWhole>(tile, p, s);
    if constexpr (Policy::kInteger) {
      Ops::Store(scores + s * kLanes, weight);
      top = Ops::Max(top, weight);
      total = Ops::Add(total, weight);
    } else {
      Policy::StoreWeights(weights + s * kLanes, weight);
    }
  }
  if constexpr (Policy::kInteger) {
    scratch->top[g] = top;
    scratch->total[g] = total;
  }
  Ops::Store(rows.sum + g * kLanes, sum);
}

// Weights become integers of 15 bits relative to the largest of the tile; their scale is NaN where
// one of them is not finite.
template <class Policy, int G>
inline void RoundRow(int vectors, int g, TileScratch<Policy, G>* scratch) {
  float inverse = 0.0f;
  scratch->weight_scale[g] =
      IntegerScale(Ops::ReduceMax(scratch->top[g]), Ops::ReduceAdd(scratch->total[g]), &inverse);
  Policy::StoreIntegers(scratch->scores[g], vectors * kLanes, inverse, kTileTokens,
                        scratch->weights[g]);
}

// All query heads: weights and sums. Returns whether what was accumulated before has to be scaled
// by the corrections.
template <bool kWhole, class Policy, int G>
inline bool SoftmaxOf(const Tile<Policy>& tile, const QueryRows<Policy>& rows, int count,
                      TileScratch<Policy, G>* scratch) {
  bool stay = true;
  for (int g = 0; g < count; ++g) {
    float factor = tile.scale * Policy::kFactor;
    if constexpr (Policy::kInteger) {
      factor *= rows.q_scale[g];
    }
    scratch->factor[g] = factor;
    scratch->top[g] = TopScores<kWhole>(tile, scratch->scores[g]);
    const float max = rows.max[g];
    stay = stay & (factor > 0.0f) & (max >= -kLargestPlainScore) & (max <= kLargestPlainScore) &
           AllAtMost<Ops>(Ops::Mul(scratch->top[g], Ops::Set1(factor)), max + kMaxSlack);
  }
  if (stay) {
    Ops::Store(scratch->correction, Ops::Set1(1.0f));
  } else {
    Ops::Store(scratch->correction, Ops::Set1(0.0f));
    RaiseMaxima(tile, rows, count, scratch);
  }
  for (int g = 0; g < count; ++g) {
    WeighRow<kWhole>(tile, rows, g, scratch);
  }
  if constexpr (Policy::kInteger) {
    for (int g = 0; g < count; ++g) {
      RoundRow<Policy, G>((tile.tokens + kLanes - 1) / kLanes, g, scratch);
    }
  }
  return !stay;
}

template <class Policy, int G>
inline bool Softmax(const Tile<Policy>& tile, const QueryRows<Policy>& rows, int count,
                    TileScratch<Policy, G>* scratch) {
  return tile.tokens == kTileTokens ? SoftmaxOf<true>(tile, rows, count, scratch)
                                    : SoftmaxOf<false>(tile, rows, count, scratch);
}

}  // namespace
}  // namespace tandem::attention
