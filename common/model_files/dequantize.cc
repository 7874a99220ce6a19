// ReadRows: from every storage type to float32. Loops run over whole blocks with constant trip
// counts and without branches, so that the compiler vectorises them: a model is loaded through
// here.
#include <bit>
#include <cstring>
#include <vector>

#include "common/model_files/model_files.h"
#include "common/model_files/tensor_type.h"

namespace tandem::model_files {
namespace {

using Byte = unsigned char;

// As base::HalfToFloat, without branches: shifted into place, a half's bits are those of the float
// 2^112 times smaller, subnormals included; infinities and NaN keep their exponent of ones.
inline float HalfToFloatFast(uint16_t half) {
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t special = magnitude >= (0x1fu << 23) ? 0x7f800000u : 0u;
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}

inline uint16_t Load16(const Byte* at) {
  uint16_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
inline uint32_t Load32(const Byte* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}
inline float LoadHalf(const Byte* at) { return HalfToFloatFast(Load16(at)); }

void ReadF16(const Byte* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = HalfToFloatFast(Load16(in + 2 * i));
  }
}

void ReadBF16(const Byte* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(Load16(in + 2 * i)) << 16);
  }
}

// Low nibbles are elements 0 to 15 of the block, high nibbles 16 to 31.
void ReadQ4_0(const Byte* in, float* out) {
  const float scale = LoadHalf(in);
  for (int j = 0; j < 16; ++j) {
    out[j] = scale * static_cast<float>((in[2 + j] & 0xf) - 8);
    out[j + 16] = scale * static_cast<float>((in[2 + j] >> 4) - 8);
  }
}

void ReadQ4_1(const Byte* in, float* out) {
  const float scale = LoadHalf(in);
  const float least = LoadHalf(in + 2);
  for (int j = 0; j < 16; ++j) {
    out[j] = scale * static_cast<float>(in[4 + j] & 0xf) + least;
    out[j + 16] = scale * static_cast<float>(in[4 + j] >> 4) + least;
  }
}

// The fifth bits of the 32 elements stand in one word.
void ReadQ5_0(const Byte* in, float* out) {
  const float scale = LoadHalf(in);
  const uint32_t high = Load32(in + 2);
  for (int j = 0; j < 16; ++j) {
    const int low_half = (in[6 + j] & 0xf) | static_cast<int>((high >> j & 1) << 4);
    const int high_half = (in[6 + j] >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
    out[j] = scale * static_cast<float>(low_half - 16);
    out[j + 16] = scale * static_cast<float>(high_half - 16);
  }
}

void ReadQ5_1(const Byte* in, float* out) {
  const float scale = LoadHalf(in);
  const float least = LoadHalf(in + 2);
  const uint32_t high = Load32(in + 4);
  for (int j = 0; j < 16; ++j) {
    const int low_half = (in[8 + j] & 0xf) | static_cast<int>((high >> j & 1) << 4);
    const int high_half = (in[8 + j] >> 4) | static_cast<int>((high >> (j + 16) & 1) << 4);
    out[j] = scale * static_cast<float>(low_half) + least;
    out[j + 16] = scale * static_cast<float>(high_half) + least;
  }
}

void ReadQ8_0(const Byte* in, float* out) {
  const float scale = LoadHalf(in);
  for (int j = 0; j < 32; ++j) {
    out[j] = scale * static_cast<float>(static_cast<signed char>(in[2 + j]));
  }
}

// The 6-bit scale and minimum of each of 8 runs of 32, packed in 12 bytes: the first four of each
// in the low six bits of bytes 0 to 7; of the others the low nibbles in bytes 8 to 11 and the upper
// two bits above those of the first.
struct RunScales {
  float scale[8];
  float least[8];
};
RunScales UnpackScales(const Byte* in) {
  const float scale = LoadHalf(in);
  const float least = LoadHalf(in + 2);
  const Byte* packed = in + 4;
  RunScales runs;
  for (int j = 0; j < 4; ++j) {
    runs.scale[j] = scale * static_cast<float>(packed[j] & 63);
    runs.least[j] = least * static_cast<float>(packed[j + 4] & 63);
    runs.scale[j + 4] = scale * static_cast<float>((packed[j + 8] & 0xf) | ((packed[j] >> 6) << 4));
    runs.least[j + 4] =
        least * static_cast<float>((packed[j + 8] >> 4) | ((packed[j + 4] >> 6) << 4));
  }
  return runs;
}

void ReadQ4_K(const Byte* in, float* out) {
  const RunScales runs = UnpackScales(in);
  const Byte* quants = in + 16;
  for (int run = 0; run < 8; run += 2, quants += 32, out += 64) {
    for (int j = 0; j < 32; ++j) {
      out[j] = runs.scale[run] * static_cast<float>(quants[j] & 0xf) - runs.least[run];
    }
    for (int j = 0; j < 32; ++j) {
      out[j + 32] = runs.scale[run + 1] * static_cast<float>(quants[j] >> 4) - runs.least[run + 1];
    }
  }
}

// As Q4_K; bit r of high[j] is the fifth bit of element j of run r.
void ReadQ5_K(const Byte* in, float* out) {
  const RunScales runs = UnpackScales(in);
  const Byte* high = in + 16;
  const Byte* quants = in + 48;
  for (int run = 0; run < 8; run += 2, quants += 32, out += 64) {
    for (int j = 0; j < 32; ++j) {
      const int value = (quants[j] & 0xf) | ((high[j] >> run & 1) << 4);
      out[j] = runs.scale[run] * static_cast<float>(value) - runs.least[run];
    }
    for (int j = 0; j < 32; ++j) {
      const int value = (quants[j] >> 4) | ((high[j] >> (run + 1) & 1) << 4);
      out[j + 32] = runs.scale[run + 1] * static_cast<float>(value) - runs.least[run + 1];
    }
  }
}

// Two halves of 128: low nibbles of 64 bytes, upper two bits in 32 bytes, 8 scales for runs of 16.
void ReadQ6_K(const Byte* in, float* out) {
  const float block_scale = LoadHalf(in + 208);
  float scales[16];
  for (int j = 0; j < 16; ++j) {
    scales[j] = block_scale * static_cast<float>(static_cast<signed char>(in[192 + j]));
  }
  for (int half = 0; half < 2; ++half) {
    const Byte* low = in + 64 * half;
    const Byte* high = in + 128 + 32 * half;
    for (int part = 0; part < 4; ++part) {
      const Byte* nibbles = low + 32 * (part & 1);
      const int nibble_shift = part >= 2 ? 4 : 0;
      for (int j = 0; j < 32; ++j) {
        const int value = (nibbles[j] >> nibble_shift & 0xf) | ((high[j] >> (2 * part) & 3) << 4);
        out[j] = scales[8 * half + 2 * part + j / 16] * static_cast<float>(value - 32);
      }
      out += 32;
    }
  }
}

template <void (*kReadBlock)(const Byte*, float*)>
void ReadBlocks(const Byte* in, int64_t count, TensorBlock block, float* out) {
  for (int64_t i = 0; i < count; i += block.elements, in += block.bytes) {
    kReadBlock(in, out + i);
  }
}

void ReadRow(TensorType type, const Byte* in, int64_t count, float* out) {
  const TensorBlock block = BlockOf(type);
  switch (type) {
    case TensorType::kF32:
      std::memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      return;
    case TensorType::kF16:
      return ReadF16(in, count, out);
    case TensorType::kBF16:
      return ReadBF16(in, count, out);
    case TensorType::kQ8_0:
      return ReadBlocks<ReadQ8_0>(in, count, block, out);
    case TensorType::kQ4_0:
      return ReadBlocks<ReadQ4_0>(in, count, block, out);
    case TensorType::kQ4_1:
      return ReadBlocks<ReadQ4_1>(in, count, block, out);
    case TensorType::kQ5_0:
      return ReadBlocks<ReadQ5_0>(in, count, block, out);
    case TensorType::kQ5_1:
      return ReadBlocks<ReadQ5_1>(in, count, block, out);
    case TensorType::kQ4_K:
      return ReadBlocks<ReadQ4_K>(in, count, block, out);
    case TensorType::kQ5_K:
      return ReadBlocks<ReadQ5_K>(in, count, block, out);
    case TensorType::kQ6_K:
      return ReadBlocks<ReadQ6_K>(in, count, block, out);
  }
}

// Where the file keeps two-halves row `index` of `total` rows in `heads` heads: there a head's rows
// come in pairs (d, d + head_dim / 2).
int64_t PermutedIndex(int64_t index, int64_t total, int64_t heads) {
  const int64_t head_dim = total / heads;
  const int64_t in_head = index % head_dim;
  const int64_t half = in_head / (head_dim / 2);
  return index - in_head + 2 * (in_head % (head_dim / 2)) + half;
}

}  // namespace

void ReadRows(const WeightView& view, int64_t first, int64_t count, float* out) {
  const Byte* data = reinterpret_cast<const Byte*>(view.data);
  if (view.permuted_heads > 0 && view.rows == 1) {  // a bias: its elements are the rows
    std::vector<float> stored(static_cast<size_t>(view.cols));
    ReadRow(view.type, data, view.cols, stored.data());
    for (int64_t i = 0; i < view.cols && count > 0; ++i) {
      out[i] = stored[static_cast<size_t>(PermutedIndex(i, view.cols, view.permuted_heads))];
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = view.permuted_heads > 0
                            ? PermutedIndex(first + i, view.rows, view.permuted_heads)
                            : first + i;
    ReadRow(view.type, data + row * view.row_bytes, view.cols, out + i * view.cols);
  }
}

}  // namespace tandem::model_files
