// Included once by each sub_tile_<isa>.cc, which defines TANDEM_NAME and TANDEM_TABLE (name of the
// function that returns the table). Everything is local to the file and free of the standard
// library's templates. The loops have fixed trip counts of 16 lanes and no branches, so that
// the compiler vectorises them for whatever it targets; contraction to fused multiply-add is off,
// so that every target rounds alike.

#include <stdint.h>
#include <string.h>

#include "common/kv_layout/sub_tile.h"

namespace tandem::kv {
namespace {

constexpr int kLanes = 16;     // tokens of a sub-tile
constexpr int kVColumns = 64;  // V columns that stand together

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

inline uint32_t Bf16Of(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  return (bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded;
}

inline uint32_t Float8Of(float value) {
  const uint32_t bits = BitsOf(value);
  const auto magnitude = static_cast<int32_t>(bits & 0x7fffffffu);
  const auto unsigned_magnitude = static_cast<uint32_t>(magnitude);
  const auto normal = static_cast<int32_t>(
      (unsigned_magnitude + 0x7ffffu + ((unsigned_magnitude >> 20) & 1u) - (120u << 23)) >> 20);
  // Below 2^-6: adding 2^14 leaves the rounded multiple of 2^-9 in the low bits.
  const auto small =
      static_cast<int32_t>(BitsOf(FloatOf(unsigned_magnitude) + 16384.0f) - 0x46800000u);
  int32_t code = magnitude < 0x3c800000 ? small : normal;
  code = code > 0x7e ? 0x7e : code;
  code = magnitude > 0x7f800000 ? 0x7f : code;
  return static_cast<uint32_t>(code) | ((bits >> 24) & 0x80u);
}

inline float FloatOfFloat8(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * (1.0f / 512.0f);
  uint32_t bits = magnitude < 8u ? BitsOf(small) : (magnitude << 20) + (120u << 23);
  bits = magnitude == 0x7fu ? 0x7fc00000u : bits;
  return FloatOf(bits | ((code & 0x80u) << 24));
}

inline float FloatOfHalf(uint32_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  uint32_t bits = magnitude < 0x400u ? BitsOf(small) : normal;
  bits = magnitude >= 0x7c00u ? normal | 0x7f800000u : bits;
  return FloatOf(bits | ((half & 0x8000u) << 16));
}

// `value` is already divided by the scale. NaN becomes -127 (its row's scale is NaN).
inline uint32_t Int8Of(float value) {
  float clamped = value > -127.0f ? value : -127.0f;
  clamped = clamped < 127.0f ? clamped : 127.0f;
  // 1.5 * 2^23: the sum's low bits are the integer, rounded to nearest even.
  return BitsOf(clamped + 12582912.0f) & 0xffu;
}

// A row's scale and the factor that divides by it, from the bits of its largest magnitude.
inline void ScaleOf(uint32_t top_bits, float* scale, float* inverse) {
  constexpr uint32_t kInfinity = 0x7f800000u;
  constexpr uint32_t kLargestBf16 = 0x7f7f0000u;  // 127 times its 127th part does not overflow
  constexpr uint32_t kSmallest = 0x04000000u;     // 2^-119: the scale is a normal number above it
  if (top_bits > kInfinity) {
    *scale = FloatOf(0x7fc00000u);
    *inverse = 0.0f;
    return;
  }
  if (top_bits < kSmallest) {
    *scale = 0.0f;
    *inverse = 0.0f;
    return;
  }
  const float top = FloatOf(top_bits > kLargestBf16 ? kLargestBf16 : top_bits);
  *scale = top / 127.0f;
  *inverse = 127.0f / top;
}

// A codec turns lanes of 32 bits, which hold `kPerLane` elements, to floats and back.
struct Bf16Codec {
  using Element = uint16_t;
  static constexpr int kPerLane = 2;
  static constexpr bool kScaled = false;
  static float Decode(uint32_t lane, int i) {
    return FloatOf(i == 0 ? lane << 16 : lane & 0xffff0000u);
  }
  static uint32_t Encode(float value) { return Bf16Of(value); }
};

struct Int8Codec {
  using Element = uint8_t;
  static constexpr int kPerLane = 4;
  static constexpr bool kScaled = true;
  static float Decode(uint32_t lane, int i) {
    return static_cast<float>(static_cast<int32_t>(lane << (24 - 8 * i)) >> 24);
  }
  static uint32_t Encode(float value) { return Int8Of(value); }
};

struct Float8Codec {
  using Element = uint8_t;
  static constexpr int kPerLane = 4;
  static constexpr bool kScaled = false;
  static float Decode(uint32_t lane, int i) { return FloatOfFloat8((lane >> (8 * i)) & 0xffu); }
  static uint32_t Encode(float value) { return Float8Of(value); }
};

template <class Codec>
constexpr int kElementBits = 32 / Codec::kPerLane;

template <class Codec>
void UnpackK(const void* in, const float* scales, int32_t head_dim, float* out) {
  const char* lanes_in = static_cast<const char*>(in);
  float factor[kLanes];
  for (int t = 0; t < kLanes; ++t) {
    factor[t] = Codec::kScaled ? scales[t] : 1.0f;
  }
  for (int32_t d = 0; d < head_dim; d += Codec::kPerLane) {
    uint32_t lanes[kLanes];
    memcpy(lanes, lanes_in, sizeof(lanes));
    lanes_in += sizeof(lanes);
#pragma GCC unroll 4
    for (int i = 0; i < Codec::kPerLane; ++i, out += kLanes) {
#pragma omp simd
      for (int t = 0; t < kLanes; ++t) {
        const float value = Codec::Decode(lanes[t], i);
        out[t] = Codec::kScaled ? value * factor[t] : value;
      }
    }
  }
}

// Per token the bits of the largest magnitude; NaN is larger than everything.
inline void TopOfK(const float* in, int32_t head_dim, int32_t* top) {
  for (int t = 0; t < kLanes; ++t) {
    top[t] = 0;
  }
  for (int32_t d = 0; d < head_dim; ++d) {
#pragma omp simd
    for (int t = 0; t < kLanes; ++t) {
      const auto bits = static_cast<int32_t>(BitsOf(in[d * kLanes + t]) & 0x7fffffffu);
      top[t] = bits > top[t] ? bits : top[t];
    }
  }
}

inline int32_t TopOfRow(const float* in, int32_t count) {
  int32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int32_t d = 0; d < count; ++d) {
    const auto bits = static_cast<int32_t>(BitsOf(in[d]) & 0x7fffffffu);
    top = bits > top ? bits : top;
  }
  return top;
}

template <class Codec>
void PackK(const float* in, int32_t head_dim, void* out, float* scales) {
  char* lanes_out = static_cast<char*>(out);
  float inverse[kLanes];
  if (Codec::kScaled) {
    int32_t top[kLanes];
    TopOfK(in, head_dim, top);
    for (int t = 0; t < kLanes; ++t) {
      ScaleOf(static_cast<uint32_t>(top[t]), scales + t, inverse + t);
    }
  }
  for (int32_t d = 0; d < head_dim; d += Codec::kPerLane) {
    uint32_t lanes[kLanes] = {};
#pragma GCC unroll 4
    for (int i = 0; i < Codec::kPerLane; ++i, in += kLanes) {
#pragma omp simd
      for (int t = 0; t < kLanes; ++t) {
        const float value = Codec::kScaled ? in[t] * inverse[t] : in[t];
        lanes[t] |= Codec::Encode(value) << (i * kElementBits<Codec>);
      }
    }
    memcpy(lanes_out, lanes, sizeof(lanes));
    lanes_out += sizeof(lanes);
  }
}

inline int32_t WidthAt(int32_t head_dim, int32_t begin) {
  return head_dim - begin < kVColumns ? head_dim - begin : kVColumns;
}

// Bytes from the start of a V tile to the sub-tile's columns [begin, begin + width).
template <class Codec>
inline int64_t ColumnsOffset(const SubTilePlace& place, int32_t begin) {
  const int64_t elements =
      int64_t{begin} * place.block_tokens + int64_t{place.token} * WidthAt(place.head_dim, begin);
  return elements * static_cast<int64_t>(sizeof(typename Codec::Element));
}

template <class Codec>
void UnpackV(const void* tile, const float* scales, const SubTilePlace& place, float* out) {
  for (int32_t begin = 0; begin < place.head_dim; begin += kVColumns) {
    const int32_t width = WidthAt(place.head_dim, begin);
    const char* in = static_cast<const char*>(tile) + ColumnsOffset<Codec>(place, begin);
    for (int t = 0; t < kLanes; t += Codec::kPerLane) {
      float* row = out + int64_t{t} * place.head_dim + begin;
      for (int32_t d = 0; d < width; d += kLanes) {
        uint32_t lanes[kLanes];
        memcpy(lanes, in, sizeof(lanes));
        in += sizeof(lanes);
#pragma GCC unroll 4
        for (int i = 0; i < Codec::kPerLane; ++i) {
          const float scale = Codec::kScaled ? scales[t + i] : 1.0f;
          float* to = row + int64_t{i} * place.head_dim + d;
#pragma omp simd
          for (int c = 0; c < kLanes; ++c) {
            const float value = Codec::Decode(lanes[c], i);
            to[c] = Codec::kScaled ? value * scale : value;
          }
        }
      }
    }
  }
}

template <class Codec>
void PackV(const float* in, const SubTilePlace& place, void* tile, float* scales) {
  float inverse[kLanes];
  if (Codec::kScaled) {
    for (int t = 0; t < kLanes; ++t) {
      const int32_t top = TopOfRow(in + int64_t{t} * place.head_dim, place.head_dim);
      ScaleOf(static_cast<uint32_t>(top), scales + t, inverse + t);
    }
  }
  for (int32_t begin = 0; begin < place.head_dim; begin += kVColumns) {
    const int32_t width = WidthAt(place.head_dim, begin);
    char* out = static_cast<char*>(tile) + ColumnsOffset<Codec>(place, begin);
    for (int t = 0; t < kLanes; t += Codec::kPerLane) {
      const float* row = in + int64_t{t} * place.head_dim + begin;
      for (int32_t d = 0; d < width; d += kLanes) {
        uint32_t lanes[kLanes] = {};
#pragma GCC unroll 4
        for (int i = 0; i < Codec::kPerLane; ++i) {
          const float factor = Codec::kScaled ? inverse[t + i] : 1.0f;
          const float* from = row + int64_t{i} * place.head_dim + d;
#pragma omp simd
          for (int c = 0; c < kLanes; ++c) {
            const float value = Codec::kScaled ? from[c] * factor : from[c];
            lanes[c] |= Codec::Encode(value) << (i * kElementBits<Codec>);
          }
        }
        memcpy(out, lanes, sizeof(lanes));
        out += sizeof(lanes);
      }
    }
  }
}

template <class Codec>
float PackRow(const float* in, int32_t count, void* out) {
  float scale = 0.0f;
  float inverse = 1.0f;
  if (Codec::kScaled) {
    ScaleOf(static_cast<uint32_t>(TopOfRow(in, count)), &scale, &inverse);
  }
  auto* elements = static_cast<typename Codec::Element*>(out);
#pragma omp simd
  for (int32_t d = 0; d < count; ++d) {
    const float value = Codec::kScaled ? in[d] * inverse : in[d];
    elements[d] = static_cast<typename Codec::Element>(Codec::Encode(value));
  }
  return scale;
}

void WidenBf16(const uint16_t* in, int32_t count, float* out) {
#pragma omp simd
  for (int32_t d = 0; d < count; ++d) {
    out[d] = FloatOf(static_cast<uint32_t>(in[d]) << 16);
  }
}

void WidenHalf(const uint16_t* in, int32_t count, float* out) {
#pragma omp simd
  for (int32_t d = 0; d < count; ++d) {
    out[d] = FloatOfHalf(in[d]);
  }
}

template <class Codec>
void UnpackRow(const void* in, float scale, int32_t count, float* out) {
  const auto* elements = static_cast<const typename Codec::Element*>(in);
#pragma omp simd
  for (int32_t d = 0; d < count; ++d) {
    const float value = Codec::Decode(elements[d], 0);
    out[d] = Codec::kScaled ? value * scale : value;
  }
}

// float32 tiles have the order that the others are unpacked to.
void CopyKIn(const void* in, const float*, int32_t head_dim, float* out) {
  memcpy(out, in, static_cast<size_t>(head_dim) * kLanes * sizeof(float));
}
void CopyKOut(const float* in, int32_t head_dim, void* out, float*) {
  memcpy(out, in, static_cast<size_t>(head_dim) * kLanes * sizeof(float));
}
inline int64_t RowsOffset(const SubTilePlace& place) {
  return int64_t{place.token} * place.head_dim;
}
void CopyVIn(const void* tile, const float*, const SubTilePlace& place, float* out) {
  memcpy(out, static_cast<const float*>(tile) + RowsOffset(place),
         static_cast<size_t>(place.head_dim) * kLanes * sizeof(float));
}
void CopyVOut(const float* in, const SubTilePlace& place, void* tile, float*) {
  memcpy(static_cast<float*>(tile) + RowsOffset(place), in,
         static_cast<size_t>(place.head_dim) * kLanes * sizeof(float));
}
float CopyRow(const float* in, int32_t count, void* out) {
  memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
  return 0.0f;
}
void CopyRowIn(const void* in, float, int32_t count, float* out) {
  memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
}

template <class Codec>
constexpr SubTileCodec CodecOf() {
  return {UnpackK<Codec>, PackK<Codec>,   UnpackV<Codec>,
          PackV<Codec>,   PackRow<Codec>, UnpackRow<Codec>};
}

}  // namespace

const SubTileKernels& TANDEM_TABLE() {
  static constexpr SubTileKernels kTable = {
      TANDEM_NAME,
      {CopyKIn, CopyKOut, CopyVIn, CopyVOut, CopyRow, CopyRowIn},
      CodecOf<Bf16Codec>(),
      CodecOf<Int8Codec>(),
      CodecOf<Float8Codec>(),
      WidenBf16,
      WidenHalf};
  return kTable;
}

}  // namespace tandem::kv
