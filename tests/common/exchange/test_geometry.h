#pragma once

#include "common/exchange/layout.h"

namespace tandem::exchange {

inline Geometry SmallGeometry() {
  Geometry geometry{};
  geometry.num_layers = 3;
  geometry.num_q_heads = 4;
  geometry.num_kv_heads = 2;
  geometry.head_dim = 32;
  geometry.compute_dtype = static_cast<uint32_t>(DType::kFloat32);
  geometry.kv_dtype = static_cast<uint32_t>(DType::kFloat32);
  geometry.block_tokens = kv::kCpuBlockTokens;
  geometry.max_rows = 8;
  geometry.num_blocks = 16;
  geometry.max_table_entries = 32;
  geometry.extent_bytes = kHugePage;
  geometry.device_wakes = 1;
  return geometry;
}

}  // namespace tandem::exchange
