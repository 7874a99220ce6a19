#include <sched.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "common/base/bfloat16.h"
#include "tests/fakes/cuda/shim/block.h"

namespace tandem::shim {
namespace {

float ElementOf(MatrixType type, uint32_t pair, uint32_t high) {
  const auto bits = static_cast<uint16_t>(pair >> (16 * high));
  return type == MatrixType::kHalf ? base::HalfToFloat(bits) : base::BFloat16ToFloat(bits);
}

// A lane's operands as numbers: pairs [register][low, high].
struct Fragment {
  float a[4][2];
  float b[2][2];
};
static_assert(sizeof(Fragment) <= sizeof(LaneValue::words));

}  // namespace

void MultiplyMatrices(Block& block, MatrixType type, const uint32_t (&a)[4], const uint32_t (&b)[2],
                      float (&c)[4]) {
  Fragment mine;
  for (uint32_t high = 0; high < 2; ++high) {
    for (uint32_t i = 0; i < 4; ++i) {
      mine.a[i][high] = ElementOf(type, a[i], high);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      mine.b[i][high] = ElementOf(type, b[i], high);
    }
  }
  LaneValue value{};
  std::memcpy(value.words, &mine, sizeof(mine));
  const LaneValue* all = block.Exchange(WarpOperation::kMatrix, value);
  const uint32_t group = CurrentThread().lane / 4;
  const uint32_t quarter = CurrentThread().lane % 4;
  for (uint32_t k_lane = 0; k_lane < 4; ++k_lane) {
    Fragment rows;
    std::memcpy(&rows, all[group * 4 + k_lane].words, sizeof(rows));
    for (uint32_t column = 0; column < 2; ++column) {
      Fragment columns;
      std::memcpy(&columns, all[(2 * quarter + column) * 4 + k_lane].words, sizeof(columns));
      for (uint32_t half = 0; half < 2; ++half) {    // rows 8 further
        for (uint32_t part = 0; part < 2; ++part) {  // k 8 further
          c[2 * half + column] += rows.a[half + 2 * part][0] * columns.b[part][0] +
                                  rows.a[half + 2 * part][1] * columns.b[part][1];
        }
      }
    }
  }
}

uint16_t HalfOfFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffu);
  if (std::isnan(value)) {
    return sign | 0x7e00u;
  }
  if (magnitude >= 65520.0f) {
    return sign | 0x7c00u;
  }
  if (magnitude < 0x1p-14f) {
    // A multiple of 2^-24: the sum's low bits are it, rounded.
    const float shifted = magnitude + 0x1p-1f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - 0x3f000000u);
  }
  const uint32_t rounded = (bits & 0x7fffffffu) + 0xfffu + (bits >> 13 & 1u) - (112u << 23);
  return sign | static_cast<uint16_t>(rounded >> 13);
}

void YieldHost() { sched_yield(); }

}  // namespace tandem::shim
