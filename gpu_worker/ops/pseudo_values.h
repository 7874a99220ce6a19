#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kv_layout/kv_layout.h"

// Values that stand for what a paced device does not compute: of ordinary size, so that whoever
// reads them meets no infinities and no subnormal numbers, and different from row to row. Immutable
// once made; any thread.
namespace tandem::gpu_worker::ops::paced {

// Rows of activations. Magnitudes lie in [0.5, 1).
class PseudoRows {
 public:
  // float32, bfloat16 or float16.
  explicit PseudoRows(DType dtype);
  // Writes a row of `width` elements; rows of different `index` differ.
  void Write(uint64_t index, int64_t width, std::byte* out) const;

 private:
  int64_t element_bytes_;
  std::vector<std::byte> values_;
};

// A block of the CPU pool's layout, one layer, to copy KV of any tokens from.
class PseudoKv {
 public:
  explicit PseudoKv(const kv::PoolGeometry& pool);
  // Writes tokens [first, first + count) of a sequence to its blocks of `to`, whose geometry is the
  // pool's.
  void Write(const kv::PagedLayer& to, int64_t first, int64_t count) const;

 private:
  kv::PoolGeometry geometry_;
  mutable std::vector<std::byte> block_;  // kv::PagedLayer knows no const pools
};

}  // namespace tandem::gpu_worker::ops::paced
