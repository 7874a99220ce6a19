#include <algorithm>
#include <cstring>
#include <vector>

#include "common/kv_layout/kv_layout.h"

namespace tandem::kv {
namespace {

struct Place {
  int64_t block;
  int32_t token;  // in the block
};

Place Locate(const PoolGeometry& geometry, std::span<const int32_t> table, int64_t position) {
  return {table[static_cast<size_t>(position / geometry.block_tokens)],
          static_cast<int32_t>(position % geometry.block_tokens)};
}

// Where whole sub-tiles have the same order of elements on both sides.
bool SameSubTiles(const PoolGeometry& from, const PoolGeometry& to) {
  return from.dtype == to.dtype && from.dtype != DType::kInt8 && from.head_dim == to.head_dim &&
         from.num_kv_heads == to.num_kv_heads;
}

// `tokens` is a multiple of the sub-tile and inside one block on both sides.
void CopySubTiles(const PoolGeometry& from, const std::byte* from_layer, int32_t from_token,
                  const PoolGeometry& to, std::byte* to_layer, int32_t to_token, int32_t tokens) {
  const auto element = static_cast<size_t>(DTypeBytes(from.dtype));
  const size_t rows = static_cast<size_t>(tokens) * element;
  // Columns whose tokens stand together: all of them in float32's V, chunks of 64 otherwise.
  const int32_t chunk = from.dtype == DType::kFloat32 ? from.head_dim : 64;
  for (int32_t head = 0; head < from.num_kv_heads; ++head) {
    const std::byte* source = from_layer + static_cast<size_t>(head) * from.head_bytes();
    std::byte* target = to_layer + static_cast<size_t>(head) * to.head_bytes();
    std::memcpy(target + to.KElement(to_token, 0) * element,
                source + from.KElement(from_token, 0) * element,
                rows * static_cast<size_t>(from.head_dim));
    source += from.k_tile_bytes();
    target += to.k_tile_bytes();
    for (int32_t d = 0; d < from.head_dim; d += chunk) {
      const auto width = static_cast<size_t>(std::min(chunk, from.head_dim - d));
      std::memcpy(target + to.VElement(to_token, d) * element,
                  source + from.VElement(from_token, d) * element, rows * width);
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

void CopyTokens(const PoolGeometry& from, const std::byte* from_pool,
                std::span<const int32_t> from_table, const PoolGeometry& to, std::byte* to_pool,
                std::span<const int32_t> to_table, int32_t from_layer, int32_t to_layer,
                int64_t first, int64_t count) {
  const bool same = SameSubTiles(from, to);
  const auto row = static_cast<size_t>(from.num_kv_heads) * static_cast<size_t>(from.head_dim);
  std::vector<float> k;
  std::vector<float> v;
  for (int64_t position = first; position < first + count;) {
    const Place source = Locate(from, from_table, position);
    const Place target = Locate(to, to_table, position);
    const std::byte* source_layer = from_pool + from.LayerOffset(source.block, from_layer);
    std::byte* target_layer = to_pool + to.LayerOffset(target.block, to_layer);
    const int32_t tokens = same ? WholeSubTiles(from, to, position, first + count) : 0;
    if (tokens > 0) {
      CopySubTiles(from, source_layer, source.token, to, target_layer, target.token, tokens);
      position += tokens;
      continue;
    }
    k.resize(row);
    v.resize(row);
    LoadToken(from, source_layer, source.token, k.data(), v.data());
    StoreToken(to, target_layer, target.token, k.data(), v.data(), DType::kFloat32);
    ++position;
  }
}

}  // namespace tandem::kv
