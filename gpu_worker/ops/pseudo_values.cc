#include "gpu_worker/ops/pseudo_values.h"

#include <algorithm>
#include <cstring>

namespace tandem::gpu_worker::ops::paced {
namespace {

// A prime count: rows of any usual width begin at different places of it.
constexpr int64_t kValues = 65'537;
constexpr uint64_t kSeed = 1;

// splitmix64 (Steele et al., 2014).
uint64_t NextRandom(uint64_t* state) {
  uint64_t z = (*state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Random sign and mantissa, the exponent of [0.5, 1).
uint32_t RandomBits(DType dtype, uint64_t random) {
  const auto bits = static_cast<uint32_t>(random);
  switch (dtype) {
    case DType::kBFloat16:
      return (bits & 0x807Fu) | 0x3F00u;
    case DType::kFloat16:
      return (bits & 0x83FFu) | 0x3800u;
    default:
      return (bits & 0x807FFFFFu) | 0x3F000000u;
  }
}

}  // namespace

PseudoRows::PseudoRows(DType dtype)
    : element_bytes_(DTypeBytes(dtype)), values_(static_cast<size_t>(kValues * element_bytes_)) {
  uint64_t state = kSeed;
  for (int64_t i = 0; i < kValues; ++i) {
    const uint32_t bits = RandomBits(dtype, NextRandom(&state) >> 16);
    std::memcpy(values_.data() + i * element_bytes_, &bits, static_cast<size_t>(element_bytes_));
  }
}

void PseudoRows::Write(uint64_t index, int64_t width, std::byte* out) const {
  uint64_t state = index;
  auto from = static_cast<int64_t>(NextRandom(&state) % static_cast<uint64_t>(kValues));
  while (width > 0) {
    const int64_t count = std::min(width, kValues - from);
    std::memcpy(out, values_.data() + from * element_bytes_,
                static_cast<size_t>(count * element_bytes_));
    out += count * element_bytes_;
    width -= count;
    from = 0;
  }
}

PseudoKv::PseudoKv(const kv::PoolGeometry& pool) : geometry_(pool) {
  geometry_.num_layers = 1;
  block_.resize(geometry_.block_bytes());
  const int64_t width = int64_t{geometry_.num_kv_heads} * geometry_.head_dim;
  std::vector<float> k(static_cast<size_t>(width));
  std::vector<float> v(static_cast<size_t>(width));
  const PseudoRows rows(DType::kFloat32);
  for (int32_t token = 0; token < geometry_.block_tokens; ++token) {
    const auto index = static_cast<uint64_t>(token) * 2;
    rows.Write(index, width, reinterpret_cast<std::byte*>(k.data()));
    rows.Write(index + 1, width, reinterpret_cast<std::byte*>(v.data()));
    kv::StoreToken(geometry_, block_.data(), token, {k.data(), v.data(), DType::kFloat32});
  }
}

void PseudoKv::Write(const kv::PagedLayer& to, int64_t first, int64_t count) const {
  const int64_t blocks = (first + count + geometry_.block_tokens - 1) / geometry_.block_tokens;
  const std::vector<int32_t> table(static_cast<size_t>(blocks), 0);
  kv::CopyTokens({&geometry_, block_.data(), table, 0}, to, first, count);
}

}  // namespace tandem::gpu_worker::ops::paced
