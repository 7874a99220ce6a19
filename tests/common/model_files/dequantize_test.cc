// Each storage type against a reference that decodes one element at a time, written from the
// format's description in terms of bit positions.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "common/base/bfloat16.h"
#include "common/model_files/model_files.h"
#include "common/model_files/tensor_type.h"
#include "gtest/gtest.h"

namespace tandem::model_files {
namespace {

using Block = const uint8_t*;

double Half(Block at) {
  const int bits = at[0] | at[1] << 8;
  const int exponent = bits >> 10 & 31;
  const double mantissa = bits & 1023;
  const double size = exponent == 0 ? std::ldexp(mantissa, -24)
                                    : std::ldexp(1.0 + mantissa / 1024.0, exponent - 15);
  return (bits & 0x8000) != 0 ? -size : size;
}

int Nibble(Block bytes, int index, int bytes_per_half) {
  return index < bytes_per_half ? bytes[index] & 15 : bytes[index - bytes_per_half] >> 4;
}

int Bit(Block bytes, int index) { return bytes[index / 8] >> (index % 8) & 1; }

// Six-bit scale (or minimum) of one of a K block's eight runs.
int RunScale(Block packed, int run, bool minimum) {
  const int low = minimum ? packed[4 + run % 4] : packed[run % 4];
  if (run < 4) {
    return low & 63;
  }
  const int nibbles = packed[8 + run % 4];
  return (minimum ? nibbles >> 4 : nibbles & 15) + (low >> 6) * 16;
}

double Reference(TensorType type, Block b, int i) {
  const int run = i / 32;
  const int in_run = i % 32;
  switch (type) {
    case TensorType::kQ8_0:
      return Half(b) * static_cast<int8_t>(b[2 + i]);
    case TensorType::kQ4_0:
      return Half(b) * (Nibble(b + 2, i, 16) - 8);
    case TensorType::kQ4_1:
      return Half(b) * Nibble(b + 4, i, 16) + Half(b + 2);
    case TensorType::kQ5_0:
      return Half(b) * (Nibble(b + 6, i, 16) + 16 * Bit(b + 2, i) - 16);
    case TensorType::kQ5_1:
      return Half(b) * (Nibble(b + 8, i, 16) + 16 * Bit(b + 4, i)) + Half(b + 2);
    case TensorType::kQ4_K:
    case TensorType::kQ5_K: {
      const bool five = type == TensorType::kQ5_K;
      const Block nibbles = b + (five ? 48 : 16) + run / 2 * 32;
      int value = run % 2 == 0 ? nibbles[in_run] & 15 : nibbles[in_run] >> 4;
      value += five ? 16 * (b[16 + in_run] >> run & 1) : 0;
      return Half(b) * RunScale(b + 4, run, false) * value -
             Half(b + 2) * RunScale(b + 4, run, true);
    }
    case TensorType::kQ6_K: {
      const int half = i / 128;
      const int part = i % 128 / 32;
      const int low_byte = b[64 * half + 32 * (part % 2) + in_run];
      const int low = part < 2 ? low_byte & 15 : low_byte >> 4;
      const int high = b[128 + 32 * half + in_run] >> (2 * part) & 3;
      const int scale = static_cast<int8_t>(b[192 + i / 16]);
      return Half(b + 208) * scale * (low + 16 * high - 32);
    }
    default:
      return 0;
  }
}

// Where a block keeps its half-precision numbers.
std::vector<int> HalfOffsets(TensorType type) {
  switch (type) {
    case TensorType::kQ8_0:
    case TensorType::kQ4_0:
    case TensorType::kQ5_0:
      return {0};
    case TensorType::kQ6_K:
      return {208};
    default:
      return {0, 2};
  }
}

class QuantizedTest : public testing::TestWithParam<TensorType> {};

TEST_P(QuantizedTest, EveryElementIsAsTheReferenceSays) {
  const TensorType type = GetParam();
  const TensorBlock block = BlockOf(type);
  const int blocks_per_row = 3;
  const int rows = 5;
  std::mt19937_64 random(7);
  // One byte in front: rows need no alignment.
  std::vector<uint8_t> bytes(1 + static_cast<size_t>(rows * blocks_per_row * block.bytes));
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random());
  }
  for (int i = 0; i < rows * blocks_per_row; ++i) {
    for (const int offset : HalfOffsets(type)) {
      bytes[static_cast<size_t>(1 + i * block.bytes + offset + 1)] &= 0xbf;  // finite, below 2
    }
  }
  WeightView view;
  view.type = type;
  view.rows = rows;
  view.cols = blocks_per_row * block.elements;
  view.row_bytes = blocks_per_row * block.bytes;
  view.data = reinterpret_cast<const std::byte*>(bytes.data() + 1);
  std::vector<float> out(static_cast<size_t>(3 * view.cols), -1.0f);
  ReadRows(view, 1, 3, out.data());
  for (int64_t i = 0; i < 3 * view.cols; ++i) {
    const int64_t row = 1 + i / view.cols;
    const int64_t col = i % view.cols;
    const Block at = bytes.data() + 1 + row * view.row_bytes + col / block.elements * block.bytes;
    const double wanted = Reference(type, at, static_cast<int>(col % block.elements));
    ASSERT_NEAR(out[static_cast<size_t>(i)], wanted, 1e-5 * (1 + std::abs(wanted)))
        << "row " << row << " column " << col;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantizedTest,
                         testing::Values(TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
                                         TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ4_K,
                                         TensorType::kQ5_K, TensorType::kQ6_K));

TEST(ReadRowsTest, EveryHalfAndBFloat16IsExact) {
  std::vector<uint16_t> bits(65536);
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<uint16_t>(i);
  }
  WeightView view;
  view.rows = 256;
  view.cols = 256;
  view.row_bytes = 512;
  view.data = reinterpret_cast<const std::byte*>(bits.data());
  std::vector<float> out(bits.size());
  view.type = TensorType::kF16;
  ReadRows(view, 0, 256, out.data());
  for (size_t i = 0; i < bits.size(); ++i) {
    const float wanted = base::HalfToFloat(bits[i]);
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(wanted)) << i;
  }
  view.type = TensorType::kBF16;
  ReadRows(view, 0, 256, out.data());
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), static_cast<uint32_t>(i) << 16);
  }
}

TEST(ReadRowsTest, PutsPermutedRowsBackInOrder) {
  // One head of dimension 6 after another; the value names the logical row.
  const std::vector<float> stored = {0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11};
  WeightView view;
  view.rows = 12;
  view.cols = 1;
  view.row_bytes = 4;
  view.data = reinterpret_cast<const std::byte*>(stored.data());
  view.permuted_heads = 2;
  std::vector<float> out(7);
  ReadRows(view, 4, 7, out.data());
  EXPECT_EQ(out, (std::vector<float>{4, 5, 6, 7, 8, 9, 10}));
  view.rows = 1;
  view.cols = 12;
  view.row_bytes = 48;
  out.resize(12);
  ReadRows(view, 0, 1, out.data());
  EXPECT_EQ(out, (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

}  // namespace
}  // namespace tandem::model_files
