#include "gpu_worker/ops/cuda/numbers.cuh"
#include "gpu_worker/ops/cuda/paged.cuh"

// KV from a paged pool to another. One of them may lie in registered host memory: whole sub-tiles
// of 16 tokens are read and written 16 bytes at a time, contiguous over a warp, so that they fill
// the bus's packets. Grid [sub-tiles, heads, layers]; a block copies 16 tokens of a head's K, then
// of its V.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kCopyThreads = 128;
constexpr int kTokens = kSubTileTokens;
constexpr int kStride = kMaxHeadDim + 1;  // of the tile in shared memory

// A sub-tile of K or V in memory. Element i of [0, 16 * head_dim) in memory order is token
// TokenOf(i) of the sub-tile, dimension DimensionOf(i).
struct SubTile {
  char* tile;
  float* scales;  // of the 16 tokens; int8 only
  ElementType type;
  bool is_v;
  int token;  // of the block, the sub-tile's first
  int block_tokens;
  int head_dim;

  // V by rows of tokens.
  TANDEM_METHOD bool HasRows() const { return is_v && type == ElementType::kFloat32; }
  // Index inside its chunk of V.
  TANDEM_METHOD int InChunk(int i) const { return i % (kTokens * kVChunkColumns); }
  TANDEM_METHOD int ChunkBegin(int i) const {
    return i / (kTokens * kVChunkColumns) * kVChunkColumns;
  }
  TANDEM_METHOD int Width(int i) const { return ChunkWidth(head_dim, ChunkBegin(i)); }
  TANDEM_METHOD int InLane(int i) const { return i & ((1 << LaneShift(type)) - 1); }
  TANDEM_METHOD int LaneOf(int i) const { return (is_v ? InChunk(i) : i) >> LaneShift(type); }
  TANDEM_METHOD int TokenOf(int i) const {
    if (HasRows()) {
      return i / head_dim;
    }
    const int lane = LaneOf(i);
    return is_v ? (lane / Width(i) << LaneShift(type)) + InLane(i) : lane % kTokens;
  }
  TANDEM_METHOD int DimensionOf(int i) const {
    if (HasRows()) {
      return i % head_dim;
    }
    const int lane = LaneOf(i);
    return is_v ? ChunkBegin(i) + lane % Width(i) : (lane / kTokens << LaneShift(type)) + InLane(i);
  }
  TANDEM_METHOD char* Address(int i) const {
    int64_t element = int64_t{token} * head_dim + i;
    if (is_v && !HasRows()) {
      element = int64_t{ChunkBegin(i)} * block_tokens + int64_t{token} * Width(i) + InChunk(i);
    }
    return tile + element * ElementBytes(type);
  }
};

TANDEM_DEVICE SubTile Locate(const PoolParams& pool, int64_t layer, const int32_t* table,
                             int position, int head) {
  SubTile sub_tile;
  sub_tile.tile = TileOf(pool, table[position / pool.block_tokens], head, false) + layer;
  sub_tile.type = pool.dtype;
  sub_tile.is_v = false;
  sub_tile.token = position % pool.block_tokens;
  sub_tile.block_tokens = pool.block_tokens;
  sub_tile.head_dim = pool.head_dim;
  sub_tile.scales = reinterpret_cast<float*>(sub_tile.tile + pool.scales_offset) + sub_tile.token;
  return sub_tile;
}

TANDEM_DEVICE void MoveToV(const PoolParams& pool, SubTile* sub_tile) {
  sub_tile->is_v = true;
  sub_tile->tile += pool.k_tile_bytes;
  sub_tile->scales =
      reinterpret_cast<float*>(sub_tile->tile + pool.scales_offset) + sub_tile->token;
}

TANDEM_DEVICE uint32_t WordOf(const Words4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Element i of an access of 16 bytes.
TANDEM_DEVICE uint32_t ElementOf(const Words4& words, int bytes, int i) {
  const uint32_t mask = bytes == 4 ? ~0u : (1u << (8 * bytes)) - 1u;
  return WordOf(words, i * bytes / 4) >> (8 * (i * bytes % 4)) & mask;
}

TANDEM_DEVICE void StoreElementBits(char* to, int bytes, uint32_t raw) {
  if (bytes == 4) {
    StoreGlobal(to, raw);
  } else if (bytes == 2) {
    StoreGlobal(to, static_cast<uint16_t>(raw));
  } else {
    StoreGlobal(to, static_cast<uint8_t>(raw));
  }
}

// The pair of sub-tiles that a block copies, of which tokens [begin, end) take part.
struct Place {
  SubTile from;
  SubTile to;
  int begin;
  int end;
  TANDEM_METHOD bool is_whole() const { return begin == 0 && end == kTokens; }
};

TANDEM_DEVICE Place PlaceOf(const CopyKvParams& params) {
  const int position = (params.first / kTokens + BlockX()) * kTokens;
  const int before = params.first - position;
  const int left = params.first + params.count - position;
  return {Locate(params.from, BlockZ() * params.from_layer_bytes, params.from_table, position,
                 params.from_first_head + BlockY()),
          Locate(params.to, BlockZ() * params.to_layer_bytes, params.to_table, position,
                 params.to_first_head + BlockY()),
          before > 0 ? before : 0, left < kTokens ? left : kTokens};
}

// Between pools of one type the order in a sub-tile is the same, and so are the scales.
TANDEM_DEVICE void CopyTile(const Place& place) {
  const int bytes = ElementBytes(place.to.type);
  const int count = 16 / bytes;
  for (int i = ThreadIndex() * count; i < kTokens * place.to.head_dim;
       i += BlockThreads() * count) {
    const auto words = LoadGlobal<Words4>(place.from.Address(i));
    if (place.is_whole()) {
      StoreGlobal(place.to.Address(i), words);
      continue;
    }
    for (int k = 0; k < count; ++k) {
      const int token = place.to.TokenOf(i + k);
      if (token >= place.begin && token < place.end) {
        StoreElementBits(place.to.Address(i + k), bytes, ElementOf(words, bytes, k));
      }
    }
  }
  const int token = ThreadIndex();
  if (place.to.type == ElementType::kInt8 && token >= place.begin && token < place.end) {
    place.to.scales[token] = place.from.scales[token];
  }
}

TANDEM_DEVICE float Decode(ElementType type, uint32_t raw, float scale) {
  switch (type) {
    case ElementType::kBFloat16:
      return FloatOfBFloat16(raw);
    case ElementType::kInt8:
      return MulRounded(FloatOfInt8(raw), scale);
    case ElementType::kFloat8E4M3:
      return FloatOfFloat8(raw);
    default:
      return FloatOf(raw);
  }
}

TANDEM_DEVICE uint32_t Encode(ElementType type, float value, float inverse) {
  switch (type) {
    case ElementType::kBFloat16:
      return BFloat16Of(value);
    case ElementType::kInt8:
      return Int8Of(MulRounded(value, inverse));
    case ElementType::kFloat8E4M3:
      return Float8Of(value);
    default:
      return BitsOf(value);
  }
}

// A sub-tile as numbers, and what divides them by their int8 scales.
struct Numbers {
  Shared<float> values;    // [16, kStride]
  Shared<float> inverses;  // [16]
};

TANDEM_DEVICE void Load(const Numbers& numbers, const SubTile& from) {
  const int bytes = ElementBytes(from.type);
  const int count = 16 / bytes;
  for (int i = ThreadIndex() * count; i < kTokens * from.head_dim; i += BlockThreads() * count) {
    const auto words = LoadGlobal<Words4>(from.Address(i));
    for (int k = 0; k < count; ++k) {
      const int token = from.TokenOf(i + k);
      const float scale = from.type == ElementType::kInt8 ? from.scales[token] : 1.0f;
      numbers.values.Store(token * kStride + from.DimensionOf(i + k),
                           Decode(from.type, ElementOf(words, bytes, k), scale));
    }
  }
}

// Scales of the tokens' rows of int8, to the pool and for Store.
TANDEM_DEVICE void MakeScales(const Numbers& numbers, const Place& place) {
  for (int token = WarpIndex(); token < kTokens; token += BlockThreads() / kWarpThreads) {
    uint32_t top = 0;
    for (int d = Lane(); d < place.to.head_dim; d += kWarpThreads) {
      const uint32_t bits = BitsOf(numbers.values.Load(token * kStride + d)) & 0x7fffffffu;
      top = bits > top ? bits : top;
    }
    const Int8Scale scale = ScaleOf(WarpMaxBits(top));
    if (Lane() == 0) {
      numbers.inverses.Store(token, scale.inverse);
      if (token >= place.begin && token < place.end) {
        place.to.scales[token] = scale.scale;
      }
    }
  }
}

TANDEM_DEVICE uint32_t Encoded(const Numbers& numbers, const SubTile& to, int i) {
  const int token = to.TokenOf(i);
  const float value = numbers.values.Load(token * kStride + to.DimensionOf(i));
  const float inverse = to.type == ElementType::kInt8 ? numbers.inverses.Load(token) : 1.0f;
  return Encode(to.type, value, inverse);
}

TANDEM_DEVICE void Store(const Numbers& numbers, const Place& place) {
  const SubTile& to = place.to;
  const int bytes = ElementBytes(to.type);
  const int count = 16 / bytes;
  for (int i = ThreadIndex() * count; i < kTokens * to.head_dim; i += BlockThreads() * count) {
    uint32_t words[4] = {};
    for (int k = 0; k < count; ++k) {
      const int token = to.TokenOf(i + k);
      const uint32_t raw = Encoded(numbers, to, i + k);
      if (!place.is_whole() && token >= place.begin && token < place.end) {
        StoreElementBits(to.Address(i + k), bytes, raw);
      }
      TANDEM_UNROLL
      for (int w = 0; w < 4; ++w) {
        words[w] |= w == k * bytes / 4 ? raw << (8 * (k * bytes % 4)) : 0u;
      }
    }
    if (place.is_whole()) {
      StoreGlobal(to.Address(i), Words4{words[0], words[1], words[2], words[3]});
    }
  }
}

}  // namespace

// Between pools of one type.
TANDEM_KERNEL(copy_kv, CopyKvParams, kCopyThreads, kNoBarriers) {
  Place place = PlaceOf(params);
  CopyTile(place);
  MoveToV(params.from, &place.from);
  MoveToV(params.to, &place.to);
  CopyTile(place);
}

// Between pools of two types.
TANDEM_KERNEL(convert_kv, CopyKvParams, kCopyThreads, kBarriers) {
  TANDEM_SHARED(float, values, kTokens* kStride);
  TANDEM_SHARED(float, inverses, kTokens);
  const Numbers numbers{values, inverses};
  Place place = PlaceOf(params);
  for (int part = 0; part < 2; ++part) {
    if (part == 1) {
      MoveToV(params.from, &place.from);
      MoveToV(params.to, &place.to);
      SyncBlock();
    }
    Load(numbers, place.from);
    SyncBlock();
    if (place.to.type == ElementType::kInt8) {
      MakeScales(numbers, place);
      SyncBlock();
    }
    Store(numbers, place);
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
