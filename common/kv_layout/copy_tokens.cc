#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/kv_layout/kv_layout.h"
#include "common/kv_layout/sub_tile.h"

namespace tandem::kv {
namespace {

constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxElements = kSubTileTokens * kMaxHeadDim;
// V columns that stand together where a lane holds several tokens.
constexpr int32_t kVChunkColumns = 64;

// A head's tiles and a token of the block.
struct Head {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int32_t token = 0;

  void Advance(const PoolGeometry& geometry) {
    k += geometry.head_bytes();
    v += geometry.head_bytes();
  }
};

Head Locate(const PagedLayer& paged, int64_t position) {
  const PoolGeometry& geometry = *paged.geometry;
  const int32_t block = paged.table[static_cast<size_t>(position / geometry.block_tokens)];
  std::byte* k = paged.pool + geometry.HeadOffset(block, paged.layer, paged.first_head);
  return {k, k + geometry.k_tile_bytes(), static_cast<int32_t>(position % geometry.block_tokens)};
}

float* Scales(const PoolGeometry& geometry, std::byte* tile) {
  return reinterpret_cast<float*>(tile + geometry.scales_offset());
}

size_t ElementBytes(const PoolGeometry& geometry) {
  return static_cast<size_t>(DTypeBytes(geometry.dtype));
}

// Copies between pools of one dtype: bytes, without conversion.
class SameTypeCopy {
 public:
  SameTypeCopy(const PoolGeometry& from, const PoolGeometry& to)
      : from_(from),
        to_(to),
        element_(ElementBytes(from)),
        lane_(LaneElements(from.dtype)),
        chunk_(lane_ == 1 ? from.head_dim : kVChunkColumns) {}

  // `tokens` from sub-tile borders on, inside one block on both sides.
  void SubTiles(const Head& source, const Head& target, int32_t tokens) const {
    const auto rows = static_cast<size_t>(tokens) * element_;
    std::memcpy(target.k + to_.KElement(target.token, 0) * element_,
                source.k + from_.KElement(source.token, 0) * element_,
                rows * static_cast<size_t>(from_.head_dim));
    for (int32_t d = 0; d < from_.head_dim; d += chunk_) {
      const auto width = static_cast<size_t>(std::min(chunk_, from_.head_dim - d));
      std::memcpy(target.v + to_.VElement(target.token, d) * element_,
                  source.v + from_.VElement(source.token, d) * element_, rows * width);
    }
    CopyScales(source, target, tokens);
  }

  // `tokens` inside one sub-tile on both sides, at the same place in it.
  void Lanes(const Head& source, const Head& target, int32_t tokens) const {
    const auto run = static_cast<size_t>(tokens * lane_) * element_;
    for (int32_t d = 0; d < from_.head_dim; d += lane_) {
      std::memcpy(target.k + to_.KElement(target.token, d) * element_,
                  source.k + from_.KElement(source.token, d) * element_, run);
    }
    for (int32_t i = 0; i < tokens;) {
      const bool whole = (source.token + i) % lane_ == 0 && i + lane_ <= tokens;
      for (int32_t d = 0; d < from_.head_dim; d += chunk_) {
        const int32_t width = std::min(chunk_, from_.head_dim - d);
        const std::byte* in = source.v + from_.VElement(source.token + i, d) * element_;
        std::byte* out = target.v + to_.VElement(target.token + i, d) * element_;
        if (whole) {
          std::memcpy(out, in, static_cast<size_t>(width * lane_) * element_);
        } else {
          OfEachLane(in, width, out);
        }
      }
      i += whole ? lane_ : 1;
    }
    CopyScales(source, target, tokens);
  }

 private:
  // One element of each of `lanes` lanes.
  void OfEachLane(const std::byte* in, int32_t lanes, std::byte* out) const {
    for (size_t i = 0; i < static_cast<size_t>(lanes); ++i) {
      std::memcpy(out + i * sizeof(uint32_t), in + i * sizeof(uint32_t), element_);
    }
  }

  void CopyScales(const Head& source, const Head& target, int32_t tokens) const {
    if (!from_.has_scales()) {
      return;
    }
    const auto bytes = static_cast<size_t>(tokens) * sizeof(float);
    std::memcpy(Scales(to_, target.k) + target.token, Scales(from_, source.k) + source.token,
                bytes);
    std::memcpy(Scales(to_, target.v) + target.token, Scales(from_, source.v) + source.token,
                bytes);
  }

  const PoolGeometry& from_;
  const PoolGeometry& to_;
  const size_t element_;
  const int32_t lane_;
  const int32_t chunk_;
};

// Converts one head's sub-tile through float32, in the first-level cache.
class Conversion {
 public:
  Conversion(const PoolGeometry& from, const PoolGeometry& to)
      : from_(from),
        to_(to),
        alone_(Alone(to)),
        unpack_(BestSubTileKernels().codec(from.dtype)),
        pack_(BestSubTileKernels().codec(to.dtype)),
        lanes_(alone_, to) {}

  // `tokens` inside one sub-tile on both sides, at the same place in it. The source's other tokens
  // are converted as well, into nothing.
  void SubTile(const Head& source, const Head& target, int32_t tokens) {
    const int32_t lane = source.token % kSubTileTokens;
    if (tokens == kSubTileTokens) {
      Convert(source, to_, target);
      return;
    }
    Head buffer{packed_, packed_ + alone_.k_tile_bytes(), 0};
    Convert({source.k, source.v, source.token - lane}, alone_, buffer);
    buffer.token = lane;
    lanes_.Lanes(buffer, target, tokens);
  }

 private:
  // `to` with room for one sub-tile.
  static PoolGeometry Alone(PoolGeometry to) {
    to.block_tokens = kSubTileTokens;
    return to;
  }

  void Convert(const Head& source, const PoolGeometry& to, const Head& target) {
    const SubTilePlace from_place{from_.head_dim, from_.block_tokens, source.token};
    const SubTilePlace to_place{to.head_dim, to.block_tokens, target.token};
    const float* k_scales = from_.has_scales() ? Scales(from_, source.k) + source.token : nullptr;
    const float* v_scales = from_.has_scales() ? Scales(from_, source.v) + source.token : nullptr;
    const std::byte* k_in = source.k + from_.KElement(source.token, 0) * ElementBytes(from_);
    std::byte* k_out = target.k + to.KElement(target.token, 0) * ElementBytes(to);
    float* k_out_scales = to.has_scales() ? Scales(to, target.k) + target.token : nullptr;
    float* v_out_scales = to.has_scales() ? Scales(to, target.v) + target.token : nullptr;
    unpack_.unpack_k(k_in, k_scales, from_.head_dim, wide_);
    pack_.pack_k(wide_, to.head_dim, k_out, k_out_scales);
    unpack_.unpack_v(source.v, v_scales, from_place, wide_);
    pack_.pack_v(wide_, to_place, target.v, v_out_scales);
  }

  const PoolGeometry& from_;
  const PoolGeometry& to_;
  const PoolGeometry alone_;
  const SubTileCodec& unpack_;
  const SubTileCodec& pack_;
  const SameTypeCopy lanes_;
  alignas(64) float wide_[kMaxElements];
  // K and V of the widest type, with scales.
  alignas(64) std::byte packed_[2 * kMaxElements * sizeof(float)];
};

// Tokens that one piece of a copy takes: whole sub-tiles up to a block's end on either side where
// `many`, else up to the sub-tile's end.
int32_t PieceTokens(const PagedLayer& from, const PagedLayer& to, int64_t position, int64_t end,
                    bool many) {
  const int64_t in_sub_tile = kSubTileTokens - position % kSubTileTokens;
  if (in_sub_tile < kSubTileTokens || !many) {
    return static_cast<int32_t>(std::min(in_sub_tile, end - position));
  }
  const int64_t from_block = from.geometry->block_tokens;
  const int64_t to_block = to.geometry->block_tokens;
  const int64_t left = std::min(
      {end - position, from_block - position % from_block, to_block - position % to_block});
  return static_cast<int32_t>(left < kSubTileTokens ? left
                                                    : left / kSubTileTokens * kSubTileTokens);
}

int32_t NumHeads(const PagedLayer& from, const PagedLayer& to) {
  return std::min(from.geometry->num_kv_heads - from.first_head,
                  to.geometry->num_kv_heads - to.first_head);
}

void CopySameType(const PagedLayer& from, const PagedLayer& to, int64_t first, int64_t end) {
  const SameTypeCopy copy(*from.geometry, *to.geometry);
  for (int64_t position = first; position < end;) {
    const int32_t tokens = PieceTokens(from, to, position, end, true);
    Head source = Locate(from, position);
    Head target = Locate(to, position);
    for (int32_t head = 0; head < NumHeads(from, to); ++head) {
      if (tokens % kSubTileTokens == 0) {
        copy.SubTiles(source, target, tokens);
      } else {
        copy.Lanes(source, target, tokens);
      }
      source.Advance(*from.geometry);
      target.Advance(*to.geometry);
    }
    position += tokens;
  }
}

void CopyConverted(const PagedLayer& from, const PagedLayer& to, int64_t first, int64_t end) {
  Conversion conversion(*from.geometry, *to.geometry);
  for (int64_t position = first; position < end;) {
    const int32_t tokens = PieceTokens(from, to, position, end, false);
    Head source = Locate(from, position);
    Head target = Locate(to, position);
    for (int32_t head = 0; head < NumHeads(from, to); ++head) {
      conversion.SubTile(source, target, tokens);
      source.Advance(*from.geometry);
      target.Advance(*to.geometry);
    }
    position += tokens;
  }
}

}  // namespace

void CopyTokens(const PagedLayer& from, const PagedLayer& to, int64_t first, int64_t count) {
  TANDEM_CHECK(from.first_head >= 0 && to.first_head >= 0 && NumHeads(from, to) > 0 &&
               from.geometry->head_dim == to.geometry->head_dim &&
               from.geometry->head_dim <= kMaxHeadDim);
  if (from.geometry->dtype == to.geometry->dtype) {
    CopySameType(from, to, first, first + count);
  } else {
    CopyConverted(from, to, first, first + count);
  }
}

}  // namespace tandem::kv
