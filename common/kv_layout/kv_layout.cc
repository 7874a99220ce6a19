#include "common/kv_layout/kv_layout.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/bfloat16.h"
#include "common/base/check.h"
#include "common/base/float8.h"
#include "common/kv_layout/sub_tile.h"

namespace tandem::kv {
namespace {

// V columns that stand together: 64 lanes fill four cache lines, one step of the widest kernel.
constexpr int32_t kVChunkColumns = 64;
constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxBlockTokens = 4096;

size_t TileBytes(const PoolGeometry& geometry) {
  const size_t scales =
      geometry.has_scales() ? static_cast<size_t>(geometry.block_tokens) * sizeof(float) : 0;
  return geometry.scales_offset() + scales;
}

absl::Status Positive(const char* field, int32_t value) {
  if (value < 1) {
    return absl::InvalidArgumentError(absl::StrCat("KV pool: ", field, " is ", value));
  }
  return absl::OkStatus();
}

template <typename Element>
constexpr int32_t kPerLane = sizeof(uint32_t) / sizeof(Element);

template <typename Element>
void ScatterK(const PoolGeometry& geometry, int32_t t, const Element* row, Element* tile) {
  Element* out = tile + geometry.KElement(t, 0);
  for (int32_t d = 0; d < geometry.head_dim; d += kPerLane<Element>) {
    std::memcpy(out + d * kSubTileTokens, row + d, sizeof(uint32_t));
  }
}

template <typename Element>
void ScatterV(const PoolGeometry& geometry, int32_t t, const Element* row, Element* tile) {
  if constexpr (kPerLane<Element> == 1) {
    std::memcpy(tile + geometry.VElement(t, 0), row,
                static_cast<size_t>(geometry.head_dim) * sizeof(Element));
    return;
  }
  for (int32_t begin = 0; begin < geometry.head_dim; begin += kVChunkColumns) {
    const int32_t width = std::min(kVChunkColumns, geometry.head_dim - begin);
    Element* out = tile + geometry.VElement(t, begin);
    for (int32_t d = 0; d < width; ++d) {
      out[kPerLane<Element> * d] = row[begin + d];
    }
  }
}

// Stores rows of one tier's element type, of `Element`'s size.
template <typename Element>
class TokenStore {
 public:
  TokenStore(const PoolGeometry& geometry, int32_t t, DType row_dtype)
      : geometry_(geometry),
        token_(t),
        row_dtype_(row_dtype),
        kernels_(BestSubTileKernels()),
        pack_row_(kernels_.codec(geometry.dtype).pack_row) {}

  // `row` [num_kv_heads, head_dim]; `tile` is the first head's.
  void Store(const void* row, bool is_v, std::byte* tile) const {
    AskFor(is_v, tile);
    for (int32_t head = 0; head < geometry_.num_kv_heads; ++head, tile += geometry_.head_bytes()) {
      if (head + 1 < geometry_.num_kv_heads) {
        AskFor(is_v, tile + geometry_.head_bytes());
      }
      const size_t first = static_cast<size_t>(head) * static_cast<size_t>(geometry_.head_dim);
      Element scratch[kMaxHeadDim];
      const Element* elements = Convert(row, first, scratch, tile);
      auto* target = reinterpret_cast<Element*>(tile);
      is_v ? ScatterV(geometry_, token_, elements, target)
           : ScatterK(geometry_, token_, elements, target);
    }
  }

 private:
  // The lines that a row is scattered over come from memory: asked for one head ahead they arrive
  // together instead of as stores retire.
  void AskFor(bool is_v, const std::byte* tile) const {
    constexpr size_t kLineBytes = 64;
    const auto ask = [](const std::byte* from, size_t bytes) {
      for (size_t at = 0; at < bytes; at += kLineBytes) {
        __builtin_prefetch(from + at, /*write=*/1);
      }
    };
    const auto head_dim = static_cast<size_t>(geometry_.head_dim);
    if (!is_v) {
      ask(tile + geometry_.KElement(token_ / kSubTileTokens * kSubTileTokens, 0) * sizeof(Element),
          head_dim * kSubTileTokens * sizeof(Element));
      return;
    }
    for (int32_t begin = 0; begin < geometry_.head_dim; begin += kVChunkColumns) {
      const int32_t width = std::min(kVChunkColumns, geometry_.head_dim - begin);
      ask(tile + geometry_.VElement(token_ / kPerLane<Element> * kPerLane<Element>, begin) *
                     sizeof(Element),
          static_cast<size_t>(width) * sizeof(uint32_t));
    }
  }

  // One head's row in the pool's type: the caller's own where types agree.
  const Element* Convert(const void* row, size_t first, Element* scratch, std::byte* tile) const {
    if (row_dtype_ == geometry_.dtype) {
      return static_cast<const Element*>(row) + first;
    }
    float wide[kMaxHeadDim];
    const float* values = wide;
    const int32_t count = geometry_.head_dim;
    if (row_dtype_ == DType::kFloat32) {
      values = static_cast<const float*>(row) + first;
    } else if (row_dtype_ == DType::kBFloat16) {
      kernels_.widen_bfloat16(static_cast<const uint16_t*>(row) + first, count, wide);
    } else {
      kernels_.widen_float16(static_cast<const uint16_t*>(row) + first, count, wide);
    }
    const float scale = pack_row_(values, count, scratch);
    if (geometry_.has_scales()) {
      reinterpret_cast<float*>(tile + geometry_.scales_offset())[token_] = scale;
    }
    return scratch;
  }

  const PoolGeometry& geometry_;
  const int32_t token_;
  const DType row_dtype_;
  const SubTileKernels& kernels_;
  float (*const pack_row_)(const float*, int32_t, void*);
};

template <typename Element>
void StoreTokenAs(const PoolGeometry& geometry, std::byte* layer_base, int32_t t,
                  const TokenRow& row) {
  const TokenStore<Element> store(geometry, t, row.dtype);
  store.Store(row.k, false, layer_base);
  store.Store(row.v, true, layer_base + geometry.k_tile_bytes());
}

// Token `t`'s element at `index` of a head's K or V tile.
float ElementAt(const PoolGeometry& geometry, const std::byte* tile, int32_t t, size_t index) {
  switch (geometry.dtype) {
    case DType::kFloat32:
      return reinterpret_cast<const float*>(tile)[index];
    case DType::kBFloat16:
      return base::BFloat16ToFloat(reinterpret_cast<const uint16_t*>(tile)[index]);
    case DType::kInt8:
      return static_cast<float>(reinterpret_cast<const int8_t*>(tile)[index]) *
             reinterpret_cast<const float*>(tile + geometry.scales_offset())[t];
    default:
      return base::Float8E4M3ToFloat(reinterpret_cast<const uint8_t*>(tile)[index]);
  }
}

bool IsPoolType(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kInt8 ||
         dtype == DType::kFloat8E4M3;
}

}  // namespace

size_t PoolGeometry::scales_offset() const {
  return static_cast<size_t>(block_tokens) * static_cast<size_t>(head_dim) *
         static_cast<size_t>(DTypeBytes(dtype));
}
size_t PoolGeometry::k_tile_bytes() const { return TileBytes(*this); }
size_t PoolGeometry::v_tile_bytes() const { return TileBytes(*this); }
size_t PoolGeometry::head_bytes() const { return k_tile_bytes() + v_tile_bytes(); }
size_t PoolGeometry::layer_bytes() const {
  return static_cast<size_t>(num_kv_heads) * head_bytes();
}
size_t PoolGeometry::block_bytes() const { return static_cast<size_t>(num_layers) * layer_bytes(); }

size_t PoolGeometry::token_bytes() const {
  return layer_bytes() / static_cast<size_t>(block_tokens);
}

size_t PoolGeometry::LayerOffset(int64_t block, int32_t layer) const {
  return static_cast<size_t>(block) * block_bytes() + static_cast<size_t>(layer) * layer_bytes();
}

size_t PoolGeometry::HeadOffset(int64_t block, int32_t layer, int32_t head) const {
  return LayerOffset(block, layer) + static_cast<size_t>(head) * head_bytes();
}

size_t PoolGeometry::KElement(int32_t t, int32_t d) const {
  const int32_t lane = LaneElements(dtype);
  const int32_t sub_tile = t / kSubTileTokens * kSubTileTokens * head_dim;
  return static_cast<size_t>(sub_tile + d / lane * lane * kSubTileTokens +
                             t % kSubTileTokens * lane + d % lane);
}

size_t PoolGeometry::VElement(int32_t t, int32_t d) const {
  const int32_t lane = LaneElements(dtype);
  if (lane == 1) {
    return static_cast<size_t>(t * head_dim + d);
  }
  const int32_t begin = d / kVChunkColumns * kVChunkColumns;
  const int32_t width = std::min(kVChunkColumns, head_dim - begin);
  return static_cast<size_t>(begin * block_tokens + t / lane * lane * width + (d - begin) * lane +
                             t % lane);
}

absl::Status ValidateGeometry(const PoolGeometry& geometry) {
  if (!IsPoolType(geometry.dtype)) {
    return absl::UnimplementedError(
        absl::StrCat("KV dtype ", DTypeName(geometry.dtype),
                     " is not available; allowed: float32, bfloat16, int8, fp8_e4m3"));
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
  TANDEM_CHECK(IsPoolType(geometry.dtype) && geometry.head_dim <= kMaxHeadDim);
  TANDEM_CHECK(row.dtype == DType::kFloat32 || row.dtype == DType::kBFloat16 ||
               row.dtype == DType::kFloat16);
  switch (DTypeBytes(geometry.dtype)) {
    case 4:
      StoreTokenAs<float>(geometry, layer_base, t, row);
      break;
    case 2:
      StoreTokenAs<uint16_t>(geometry, layer_base, t, row);
      break;
    default:
      StoreTokenAs<uint8_t>(geometry, layer_base, t, row);
      break;
  }
}

void RoundRow(DType dtype, int32_t num_heads, int32_t head_dim, float* row) {
  TANDEM_CHECK(IsPoolType(dtype) && head_dim <= kMaxHeadDim);
  const SubTileCodec& codec = BestSubTileKernels().codec(dtype);
  alignas(float) std::byte packed[kMaxHeadDim * sizeof(float)];
  for (int32_t head = 0; head < num_heads; ++head, row += head_dim) {
    const float scale = codec.pack_row(row, head_dim, packed);
    codec.unpack_row(packed, scale, head_dim, row);
  }
}

void LoadToken(const PoolGeometry& geometry, const std::byte* layer_base, int32_t t, float* k,
               float* v) {
  TANDEM_CHECK(IsPoolType(geometry.dtype));
  for (int32_t head = 0; head < geometry.num_kv_heads; ++head) {
    const std::byte* k_tile = layer_base + static_cast<size_t>(head) * geometry.head_bytes();
    const std::byte* v_tile = k_tile + geometry.k_tile_bytes();
    for (int32_t d = 0; d < geometry.head_dim; ++d) {
      *k++ = ElementAt(geometry, k_tile, t, geometry.KElement(t, d));
      *v++ = ElementAt(geometry, v_tile, t, geometry.VElement(t, d));
    }
  }
}

}  // namespace tandem::kv
