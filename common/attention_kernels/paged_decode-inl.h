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
#include "common/attention_kernels/vector_tile-inl.h"

namespace tandem::attention {
namespace {

// 16 query elements in float32.
inline Ops::Vec LoadQuery(const SegmentArgs& args, int index) {
  switch (args.q_dtype) {
    case DType::kFloat32:
      return Ops::Load(static_cast<const float*>(args.q) + index);
    case DType::kBFloat16:
      return Ops::LoadBf16(static_cast<const uint16_t*>(args.q) + index);
    default:
      return Ops::LoadHalf(static_cast<const uint16_t*>(args.q) + index);
  }
}

// Query heads [first_q, first_q + heads * group) of KV heads [first_head, first_head + heads).
struct HeadRange {
  int first_head;
  int heads;
  int first_q;
  int group;
};

// Query rows in the form that the policy multiplies with, [heads * group, head_dim]; `scales` for
// integer weights.
template <class Policy>
inline void PrepareQuery(const SegmentArgs& args, const HeadRange& range, int head_dim,
                         typename Policy::Weight* q, float* scales) {
  int first = range.first_q * head_dim;
  for (int row = 0; row < range.heads * range.group; ++row, first += head_dim, q += head_dim) {
    if constexpr (Policy::kInteger) {
      alignas(64) float values[kMaxHeadDim];
      Ops::Vec top = Ops::Set1(0.0f);
      Ops::Vec total = Ops::Set1(0.0f);
      for (int d = 0; d < head_dim; d += kLanes) {
        const Ops::Vec value = LoadQuery(args, first + d);
        Ops::Store(values + d, value);
        top = Ops::Max(top, Ops::Max(value, Ops::Mul(value, Ops::Set1(-1.0f))));
        total = Ops::Add(total, value);
      }
      float inverse = 0.0f;
      scales[row] = IntegerScale(Ops::ReduceMax(top), Ops::ReduceAdd(total), &inverse);
      Policy::StoreIntegers(values, head_dim, inverse, head_dim, q);
    } else {
      for (int d = 0; d < head_dim; d += kLanes) {
        Policy::StoreWeights(q + d, LoadQuery(args, first + d));
      }
    }
  }
}

// What is the same for all tiles of a segment.
template <class Policy>
Tile<Policy> MakeTile(const kv::PoolGeometry& geometry, const SegmentArgs& args, Prefetch rule) {
  Tile<Policy> tile;
  tile.block_tokens = geometry.block_tokens;
  tile.head_dim = geometry.head_dim;
  tile.scale = args.scale;
  tile.group_size = args.group_size;
  tile.prefetch = rule != Prefetch::kOff;
  tile.prefetch_values = rule == Prefetch::kAhead || (tile.prefetch && HasOwnRule<Policy>);
  tile.far = rule == Prefetch::kNextTile;
  tile.after_k = rule == Prefetch::kNextTile ? static_cast<ptrdiff_t>(geometry.k_tile_bytes())
                                             : kPrefetchAhead;
  tile.after_v = kPrefetchAhead;
  tile.in_softmax = kPrefetchAhead - static_cast<ptrdiff_t>(geometry.k_tile_bytes()) +
                    static_cast<ptrdiff_t>(geometry.scales_offset());
  return tile;
}

// Heads of a block follow each other, blocks do not.
struct TilePlace {
  const std::byte* base = nullptr;  // a head of a block
  const std::byte* next = nullptr;  // what is read after it
  bool last_head = false;
};

template <class Policy>
void PlaceTile(const kv::PoolGeometry& geometry, const TilePlace& place, Prefetch rule,
               Tile<Policy>* tile) {
  const std::byte* v = place.base + geometry.k_tile_bytes();
  tile->k = reinterpret_cast<const typename Policy::Element*>(place.base) +
            tile->first_row * geometry.head_dim;
  tile->v = reinterpret_cast<const typename Policy::Element*>(v);
  tile->next = place.last_head ? place.next : nullptr;
  if (rule == Prefetch::kNextTile) {
    tile->after_v = place.next - v;
    tile->in_softmax = tile->after_v;
    tile->next = nullptr;
  }
  if constexpr (Policy::kScales) {
    const size_t scales = geometry.scales_offset();
    tile->k_scales = reinterpret_cast<const float*>(place.base + scales) + tile->first_row;
    tile->v_scales = reinterpret_cast<const float*>(v + scales) + tile->first_row;
  }
}

// Running state of the query heads of a range.
template <class Policy>
struct RangeState {
  alignas(64) typename Policy::Weight q[kQueryScratch];
  float q_scale[kQueryScratch / kLanes];
  alignas(64) float sum[kQueryScratch];
};

template <class Policy>
Prefetch RuleOf(const kv::PoolGeometry& geometry, const SegmentArgs& args) {
  if (args.prefetch != Prefetch::kTable) {
    return args.prefetch;
  }
  if constexpr (HasOwnRule<Policy>) {
    return Policy::PrefetchRule(args.group_size);
  } else {
    return PrefetchRule(geometry.dtype, args.group_size, geometry.block_tokens);
  }
}

template <class Policy>
void AttendBlocks(const kv::PoolGeometry& geometry, const SegmentArgs& args, const HeadRange& range,
                  QueryRows<Policy> rows) {
  const Prefetch rule = RuleOf<Policy>(geometry, args);
  Tile<Policy> tile = MakeTile<Policy>(geometry, args, rule);
  const size_t head_bytes = geometry.head_bytes();
  const int64_t end = args.first_token + args.num_tokens;
  const auto first_head = [&](int64_t position) {
    return args.pool + geometry.HeadOffset(args.block_table[position / geometry.block_tokens],
                                           args.layer, range.first_head);
  };
  const std::byte* base = first_head(args.first_token);
  for (int64_t position = args.first_token; position < end;) {
    tile.first_row = static_cast<int>(position % geometry.block_tokens);
    const int64_t left = end - position;
    const int room = MinOf(kTileTokens, geometry.block_tokens - tile.first_row);
    tile.tokens = left < room ? static_cast<int>(left) : room;
    position += tile.tokens;
    const std::byte* next_base = position < end ? first_head(position) : base;
    QueryRows<Policy> of_head = rows;
    for (int head = 0; head < range.heads; ++head) {
      const std::byte* at = base + static_cast<size_t>(head) * head_bytes;
      const bool last = head + 1 == range.heads;
      PlaceTile(geometry, {at, last ? next_base : at + head_bytes, last}, rule, &tile);
      AttendGroup(range.group, tile, of_head);
      of_head.Advance(range.group, geometry.head_dim);
    }
    base = next_base;
  }
}

template <class Policy>
void AttendHeads(const kv::PoolGeometry& geometry, const SegmentArgs& args,
                 const HeadRange& range) {
  const int head_dim = geometry.head_dim;
  const int num_q = range.heads * range.group;
  RangeState<Policy> state;
  PrepareQuery<Policy>(args, range, head_dim, state.q, state.q_scale);
  float* acc = args.out + range.first_q * head_dim;
  float* max = args.log_sum_exp + range.first_q;
  memset(acc, 0, sizeof(float) * static_cast<size_t>(num_q * head_dim));
  for (int i = 0; i < num_q; ++i) {
    max[i] = kMinusInfinity;
    Ops::Store(state.sum + i * kLanes, Ops::Set1(0.0f));
  }
  AttendBlocks(geometry, args, range,
               QueryRows<Policy>{state.q, state.q_scale, acc, max, state.sum});
  for (int i = 0; i < num_q; ++i) {
    const float sum = Ops::ReduceAdd(Ops::Load(state.sum + i * kLanes));
    const Ops::Vec inverse = Ops::Set1(1.0f / sum);
    for (int d = 0; d < head_dim; d += kLanes) {
      float* out = acc + i * head_dim + d;
      Ops::Store(out, Ops::Mul(Ops::Load(out), inverse));
    }
    max[i] += logf(sum);
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

// StoreRow of one instruction set.
inline void StoreRowByOps(const float* from, size_t count, DType dtype, void* to) {
  for (size_t i = 0; i < count; i += kLanes) {
    const Ops::Vec values = Ops::Load(from + i);
    switch (dtype) {
      case DType::kBFloat16:
        Ops::StoreBf16(static_cast<uint16_t*>(to) + i, values);
        break;
      case DType::kFloat16:
        Ops::StoreHalf(static_cast<uint16_t*>(to) + i, values);
        break;
      default:
        Ops::Store(static_cast<float*>(to) + i, values);
    }
  }
}

// The kernels that need nothing but Ops.
inline AttendSegmentFn WidenedKernel(DType kv_dtype) {
  switch (kv_dtype) {
    case DType::kFloat32:
      return AttendSegment<Float32Policy>;
    case DType::kBFloat16:
      return AttendSegment<WidenedBf16Policy>;
    case DType::kInt8:
      return AttendSegment<WidenedInt8Policy>;
    case DType::kFloat8E4M3:
      return AttendSegment<WidenedFp8Policy>;
    default:
      return nullptr;
  }
}

}  // namespace
}  // namespace tandem::attention
