#include "cli/bench/attention_pool.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace tandem::cli {
namespace {

// A prime number of words, so that no two blocks hold the same.
constexpr size_t kPatternWords = 1048573;

struct Bits {
  uint32_t keep;  // of random bits
  uint32_t set;
};

Bits BitsOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {0x807fffffu, 0x3f000000u};
    case DType::kBFloat16:
      return {0x807f807fu, 0x3f003f00u};
    case DType::kFloat8E4M3:
      return {0xbfbfbfbfu, 0};  // below the exponent of 2
    default:
      return {0xffffffffu, 0};
  }
}

void FillScales(const kv::PoolGeometry& geometry, int64_t blocks, std::byte* pool) {
  constexpr float kScale = 1.0f / 64;
  const std::vector<float> scales(static_cast<size_t>(geometry.block_tokens), kScale);
  const size_t bytes = scales.size() * sizeof(float);
  const auto heads = static_cast<size_t>(blocks) * static_cast<size_t>(geometry.num_layers) *
                     static_cast<size_t>(geometry.num_kv_heads);
  for (size_t head = 0; head < heads; ++head) {
    std::byte* tile = pool + head * geometry.head_bytes() + geometry.k_tile_bytes();
    std::memcpy(tile - bytes, scales.data(), bytes);
    std::memcpy(tile + geometry.v_tile_bytes() - bytes, scales.data(), bytes);
  }
}

}  // namespace

void FillPool(const kv::PoolGeometry& geometry, int64_t blocks, std::byte* pool) {
  const Bits bits = BitsOf(geometry.dtype);
  std::mt19937 random(1);
  std::vector<uint32_t> pattern(kPatternWords);
  for (uint32_t& word : pattern) {
    word = (static_cast<uint32_t>(random()) & bits.keep) | bits.set;
  }
  const size_t bytes = static_cast<size_t>(blocks) * geometry.block_bytes();
  const size_t step = pattern.size() * sizeof(uint32_t);
  for (size_t at = 0; at < bytes; at += step) {
    std::memcpy(pool + at, pattern.data(), std::min(step, bytes - at));
  }
  if (geometry.has_scales()) {
    FillScales(geometry, blocks, pool);
  }
}

}  // namespace tandem::cli
