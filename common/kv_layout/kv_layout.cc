#include "common/kv_layout/kv_layout.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/bfloat16.h"
#include "common/base/check.h"

namespace tandem::kv {
namespace {

// V columns that stand together in the pair layouts: 64 columns times 2 tokens of bfloat16 fill
// four cache lines, one step of the widest kernel.
constexpr int kVChunkColumns = 64;
constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxBlockTokens = 4096;

bool HasScales(DType dtype) { return dtype == DType::kInt8; }

size_t TileBytes(const PoolGeometry& geometry) {
  const auto tokens = static_cast<size_t>(geometry.block_tokens);
  const size_t scales = HasScales(geometry.dtype) ? tokens * sizeof(float) : 0;
  return tokens * static_cast<size_t>(geometry.head_dim) *
             static_cast<size_t>(DTypeBytes(geometry.dtype)) +
         scales;
}

absl::Status Positive(const char* field, int32_t value) {
  if (value < 1) {
    return absl::InvalidArgumentError(absl::StrCat("KV pool: ", field, " is ", value));
  }
  return absl::OkStatus();
}

float RowElement(const void* row, size_t index, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(row)[index];
    case DType::kBFloat16:
      return base::BFloat16ToFloat(static_cast<const uint16_t*>(row)[index]);
    default:
      return base::HalfToFloat(static_cast<const uint16_t*>(row)[index]);
  }
}

// One head's row as the pool's element type; returns `scratch` or, where types agree, the row.
const float* ConvertRow(const void* row, size_t first, int32_t count, DType dtype, float* scratch) {
  if (dtype == DType::kFloat32) {
    return static_cast<const float*>(row) + first;
  }
  for (int32_t d = 0; d < count; ++d) {
    scratch[d] = RowElement(row, first + static_cast<size_t>(d), dtype);
  }
  return scratch;
}

const uint16_t* ConvertRow(const void* row, size_t first, int32_t count, DType dtype,
                           uint16_t* scratch) {
  if (dtype == DType::kBFloat16) {
    return static_cast<const uint16_t*>(row) + first;
  }
  for (int32_t d = 0; d < count; ++d) {
    scratch[d] = base::FloatToBFloat16(RowElement(row, first + static_cast<size_t>(d), dtype));
  }
  return scratch;
}

void ScatterK(const PoolGeometry& geometry, int32_t t, const float* row, float* tile) {
  float* column = tile + geometry.KElement(t, 0);
  for (int32_t d = 0; d < geometry.head_dim; ++d) {
    column[d * kSubTileTokens] = row[d];
  }
}

void ScatterK(const PoolGeometry& geometry, int32_t t, const uint16_t* row, uint16_t* tile) {
  uint16_t* pairs = tile + geometry.KElement(t, 0);
  for (int32_t d = 0; d < geometry.head_dim; d += 2) {
    std::memcpy(pairs + d * kSubTileTokens, row + d, 2 * sizeof(uint16_t));
  }
}

void ScatterV(const PoolGeometry& geometry, int32_t t, const float* row, float* tile) {
  std::memcpy(tile + geometry.VElement(t, 0), row,
              static_cast<size_t>(geometry.head_dim) * sizeof(float));
}

void ScatterV(const PoolGeometry& geometry, int32_t t, const uint16_t* row, uint16_t* tile) {
  for (int32_t begin = 0; begin < geometry.head_dim; begin += kVChunkColumns) {
    const int32_t width = std::min(kVChunkColumns, geometry.head_dim - begin);
    uint16_t* out = tile + geometry.VElement(t, begin);
    for (int32_t d = 0; d < width; ++d) {
      out[2 * d] = row[begin + d];
    }
  }
}

// Element is float or uint16_t (bfloat16 bits).
template <typename Element>
void StoreTokenAs(const PoolGeometry& geometry, std::byte* layer_base, int32_t t,
                  const TokenRow& row) {
  Element scratch[kMaxHeadDim];
  const size_t head_bytes = geometry.head_bytes();
  const size_t v_offset = geometry.k_tile_bytes();
  for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
    std::byte* tiles = layer_base + static_cast<size_t>(head) * head_bytes;
    const size_t first = static_cast<size_t>(head) * static_cast<size_t>(geometry.head_dim);
    ScatterK(geometry, t, ConvertRow(row.k, first, geometry.head_dim, row.dtype, scratch),
             reinterpret_cast<Element*>(tiles));
    ScatterV(geometry, t, ConvertRow(row.v, first, geometry.head_dim, row.dtype, scratch),
             reinterpret_cast<Element*>(tiles + v_offset));
  }
}

float Element(const std::byte* tile, size_t index, DType dtype) {
  return RowElement(tile, index, dtype);
}

}  // namespace

size_t PoolGeometry::k_tile_bytes() const { return TileBytes(*this); }
size_t PoolGeometry::v_tile_bytes() const { return TileBytes(*this); }
size_t PoolGeometry::head_bytes() const { return k_tile_bytes() + v_tile_bytes(); }
size_t PoolGeometry::layer_bytes() const {
  return static_cast<size_t>(num_kv_heads) * head_bytes();
}
size_t PoolGeometry::block_bytes() const { return static_cast<size_t>(num_layers) * layer_bytes(); }

size_t PoolGeometry::LayerOffset(int64_t block, int32_t layer) const {
  return static_cast<size_t>(block) * block_bytes() + static_cast<size_t>(layer) * layer_bytes();
}

size_t PoolGeometry::HeadOffset(int64_t block, int32_t layer, int32_t head) const {
  return LayerOffset(block, layer) + static_cast<size_t>(head) * head_bytes();
}

size_t PoolGeometry::KElement(int32_t t, int32_t d) const {
  const int32_t sub_tile = t / kSubTileTokens * kSubTileTokens * head_dim;
  const int32_t lane = t % kSubTileTokens;
  if (dtype == DType::kFloat32) {
    return static_cast<size_t>(sub_tile + d * kSubTileTokens + lane);
  }
  return static_cast<size_t>(sub_tile + d / 2 * 2 * kSubTileTokens + lane * 2 + d % 2);
}

size_t PoolGeometry::VElement(int32_t t, int32_t d) const {
  if (dtype == DType::kFloat32) {
    return static_cast<size_t>(t * head_dim + d);
  }
  const int32_t begin = d / kVChunkColumns * kVChunkColumns;
  const int32_t width = std::min(kVChunkColumns, head_dim - begin);
  return static_cast<size_t>(begin * block_tokens + t / 2 * 2 * width + (d - begin) * 2 + t % 2);
}

absl::Status ValidateGeometry(const PoolGeometry& geometry) {
  if (geometry.dtype != DType::kFloat32 && geometry.dtype != DType::kBFloat16) {
    return absl::UnimplementedError(absl::StrCat("KV dtype ", DTypeName(geometry.dtype),
                                                 " is not available; allowed: float32, bfloat16"));
  }
  const struct {
    const char* field;
    int32_t value;
  } fields[] = {{"num_layers", geometry.num_layers},
                {"num_kv_heads", geometry.num_kv_heads},
                {"head_dim", geometry.head_dim},
                {"block_tokens", geometry.block_tokens}};
  for (const auto& field : fields) {
    if (absl::Status status = Positive(field.field, field.value); !status.ok()) {
      return status;
    }
  }
  if (geometry.head_dim % 16 != 0 || geometry.head_dim > kMaxHeadDim) {
    return absl::InvalidArgumentError(absl::StrCat("KV pool: head_dim ", geometry.head_dim,
                                                   " is not a multiple of 16 up to ", kMaxHeadDim));
  }
  if (geometry.block_tokens % kSubTileTokens != 0 || geometry.block_tokens > kMaxBlockTokens) {
    return absl::InvalidArgumentError(absl::StrCat("KV pool: block_tokens ", geometry.block_tokens,
                                                   " is not a multiple of ", kSubTileTokens,
                                                   " up to ", kMaxBlockTokens));
  }
  // Bounds that keep the size of a block inside 63 bits, also for sizes from a hostile peer.
  if (geometry.num_layers > 4096 || geometry.num_kv_heads > 4096) {
    return absl::InvalidArgumentError("KV pool: num_layers or num_kv_heads over 4096");
  }
  return absl::OkStatus();
}

void StoreToken(const PoolGeometry& geometry, std::byte* layer_base, int32_t t,
                const TokenRow& row) {
  if (geometry.dtype == DType::kFloat32) {
    StoreTokenAs<float>(geometry, layer_base, t, row);
    return;
  }
  TANDEM_CHECK(geometry.dtype == DType::kBFloat16);
  StoreTokenAs<uint16_t>(geometry, layer_base, t, row);
}

void LoadToken(const PoolGeometry& geometry, const std::byte* layer_base, int32_t t, float* k,
               float* v) {
  TANDEM_CHECK(geometry.dtype == DType::kFloat32 || geometry.dtype == DType::kBFloat16);
  for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
    const std::byte* k_tile = layer_base + static_cast<size_t>(head) * geometry.head_bytes();
    const std::byte* v_tile = k_tile + geometry.k_tile_bytes();
    for (int32_t d = 0; d < geometry.head_dim; ++d) {
      *k++ = Element(k_tile, geometry.KElement(t, d), geometry.dtype);
      *v++ = Element(v_tile, geometry.VElement(t, d), geometry.dtype);
    }
  }
}

}  // namespace tandem::kv
