#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "common/kv_layout/kv_layout.h"

namespace tandem::kv {

inline constexpr DType kPoolTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kInt8,
                                       DType::kFloat8E4M3};

inline PoolGeometry Make(DType dtype, int32_t head_dim, int32_t block_tokens) {
  return {dtype, /*num_layers=*/2, /*num_kv_heads=*/3, head_dim, block_tokens};
}

inline size_t RowSize(const PoolGeometry& geometry) {
  return static_cast<size_t>(geometry.num_kv_heads) * static_cast<size_t>(geometry.head_dim);
}

inline std::vector<float> RandomRow(size_t count, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> row(count);
  for (float& value : row) {
    value = normal(random);
  }
  return row;
}

// A pool whose every byte is 0xff (NaN in every type), with its blocks in random order.
class TestPool {
 public:
  TestPool(const PoolGeometry& geometry, int64_t tokens, std::mt19937_64& random)
      : geometry_(geometry), table_(static_cast<size_t>((tokens - 1) / geometry.block_tokens + 1)) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random);
    bytes_.assign(table_.size() * geometry.block_bytes(), std::byte{0xff});
  }

  PagedLayer Layer(int32_t layer) { return {&geometry_, bytes_.data(), table_, layer}; }
  void Store(int32_t layer, int64_t position, const TokenRow& row) {
    StoreToken(geometry_, LayerBase(layer, position), TokenOf(position), row);
  }
  void Load(int32_t layer, int64_t position, float* k, float* v) {
    LoadToken(geometry_, LayerBase(layer, position), TokenOf(position), k, v);
  }
  const PoolGeometry& geometry() const { return geometry_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  void SetBytes(const std::vector<std::byte>& bytes) { bytes_ = bytes; }

 private:
  std::byte* LayerBase(int32_t layer, int64_t position) {
    const auto block = static_cast<size_t>(position / geometry_.block_tokens);
    return bytes_.data() + geometry_.LayerOffset(table_[block], layer);
  }
  int32_t TokenOf(int64_t position) const {
    return static_cast<int32_t>(position % geometry_.block_tokens);
  }

  PoolGeometry geometry_;
  std::vector<int32_t> table_;
  std::vector<std::byte> bytes_;
};

}  // namespace tandem::kv
