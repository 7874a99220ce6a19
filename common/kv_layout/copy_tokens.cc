#include <algorithm>
#include <cstring>
#include <vector>

#include "common/kv_layout/kv_layout.h"

namespace tandem::kv {
namespace {

// A token's block, of one layer.
struct Place {
  std::byte* layer_base;
  int32_t token;  // in the block
};

Place Locate(const PagedLayer& paged, int64_t position) {
  const PoolGeometry& geometry = *paged.geometry;
  const int32_t block = paged.table[static_cast<size_t>(position / geometry.block_tokens)];
  return {paged.pool + geometry.LayerOffset(block, paged.layer),
          static_cast<int32_t>(position % geometry.block_tokens)};
}

// Where whole sub-tiles have the same order of elements on both sides.
bool SameSubTiles(const PoolGeometry& from, const PoolGeometry& to) {
  return from.dtype == to.dtype && from.dtype != DType::kInt8 && from.head_dim == to.head_dim &&
         from.num_kv_heads == to.num_kv_heads;
}

// `tokens` is a multiple of the sub-tile and inside one block on both sides.
void CopySubTiles(const PoolGeometry& from, const Place& source_place, const PoolGeometry& to,
                  const Place& target_place, int32_t tokens) {
  const auto element = static_cast<size_t>(DTypeBytes(from.dtype));
  const size_t rows = static_cast<size_t>(tokens) * element;
  // Columns whose tokens stand together: all of them in float32's V, chunks of 64 otherwise.
  const int32_t chunk = from.dtype == DType::kFloat32 ? from.head_dim : 64;
  for (int32_t head = 0; head < from.num_kv_heads; ++head) {
    const std::byte* source =
        source_place.layer_base + static_cast<size_t>(head) * from.head_bytes();
    std::byte* target = target_place.layer_base + static_cast<size_t>(head) * to.head_bytes();
    std::memcpy(target + to.KElement(target_place.token, 0) * element,
                source + from.KElement(source_place.token, 0) * element,
                rows * static_cast<size_t>(from.head_dim));
    source += from.k_tile_bytes();
    target += to.k_tile_bytes();
    for (int32_t d = 0; d < from.head_dim; d += chunk) {
      const auto width = static_cast<size_t>(std::min(chunk, from.head_dim - d));
      std::memcpy(target + to.VElement(target_place.token, d) * element,
                  source + from.VElement(source_place.token, d) * element, rows * width);
    }
  }
}

// The whole sub-tiles that start at `position`, up to the end of the block on either side.
int32_t WholeSubTiles(const PoolGeometry& from, const PoolGeometry& to, int64_t position,
                      int64_t end) {
  if (position % kSubTileTokens != 0) {
    return 0;
  }
  const int64_t left = std::min({end - position, from.block_tokens - position % from.block_tokens,
                                 to.block_tokens - position % to.block_tokens});
  return static_cast<int32_t>(left / kSubTileTokens * kSubTileTokens);
}

}  // namespace

void CopyTokens(const PagedLayer& from, const PagedLayer& to, int64_t first, int64_t count) {
  const PoolGeometry& geometry = *from.geometry;
  const bool same = SameSubTiles(geometry, *to.geometry);
  const auto row =
      static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(geometry.head_dim);
  std::vector<float> k;
  std::vector<float> v;
  for (int64_t position = first; position < first + count;) {
    const Place source = Locate(from, position);
    const Place target = Locate(to, position);
    const int32_t tokens =
        same ? WholeSubTiles(geometry, *to.geometry, position, first + count) : 0;
    if (tokens > 0) {
      CopySubTiles(geometry, source, *to.geometry, target, tokens);
      position += tokens;
      continue;
    }
    k.resize(row);
    v.resize(row);
    LoadToken(geometry, source.layer_base, source.token, k.data(), v.data());
    StoreToken(*to.geometry, target.layer_base, target.token,
               {k.data(), v.data(), DType::kFloat32});
    ++position;
  }
}

}  // namespace tandem::kv
