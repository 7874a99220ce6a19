#pragma once

#include "gpu_worker/ops/cuda/intrinsics.cuh"

// Where things stand in paged pools and in the runs of a batch.
namespace tandem::gpu_worker::ops::cuda {

constexpr int kSubTileTokens = 16;
constexpr int kVChunkColumns = 64;  // of V that stand together where a lane holds several tokens
constexpr int kMaxHeadDim = 256;

TANDEM_DEVICE int ElementBytes(ElementType type) {
  if (type == ElementType::kFloat32) {
    return 4;
  }
  return type == ElementType::kInt8 || type == ElementType::kFloat8E4M3 ? 1 : 2;
}

// Logarithm of the elements in a lane of 32 bits, which stand together: dimensions of a token in K,
// tokens of a column in V.
TANDEM_DEVICE int LaneShift(ElementType type) {
  const int bytes = ElementBytes(type);
  return bytes == 4 ? 0 : 3 - bytes;
}

TANDEM_DEVICE char* TileOf(const PoolParams& pool, int block, int head, bool is_v) {
  return pool.data + block * pool.block_bytes + head * pool.head_bytes +
         (is_v ? pool.k_tile_bytes : 0);
}

// Where token `t` of a block stands in its K tile, dimension `d` (elements; kv::PoolGeometry).
TANDEM_DEVICE int KElement(const PoolParams& pool, int t, int d) {
  const int sub_tile = t / kSubTileTokens * kSubTileTokens * pool.head_dim;
  const int shift = LaneShift(pool.dtype);
  const int lane = (d >> shift) * kSubTileTokens + t % kSubTileTokens;
  return sub_tile + (lane << shift) + (d & ((1 << shift) - 1));
}

// Columns of the V chunk that holds dimension `d`.
TANDEM_DEVICE int ChunkWidth(int head_dim, int d) {
  const int left = head_dim - d / kVChunkColumns * kVChunkColumns;
  return left < kVChunkColumns ? left : kVChunkColumns;
}

TANDEM_DEVICE int VElement(const PoolParams& pool, int t, int d) {
  if (pool.dtype == ElementType::kFloat32) {
    return t * pool.head_dim + d;
  }
  const int begin = d / kVChunkColumns * kVChunkColumns;
  const int shift = LaneShift(pool.dtype);
  const int lane = (t >> shift) * ChunkWidth(pool.head_dim, d) + d - begin;
  return begin * pool.block_tokens + (lane << shift) + (t & ((1 << shift) - 1));
}

// A row of one of the runs.
struct RunRow {
  int64_t row;      // of the batch
  int position;     // of its token
  int table_begin;  // of its run
  bool is_there;    // else the runs have fewer rows
};

// The `index`th of all runs' rows; runs without rows come last.
TANDEM_DEVICE RunRow FindRow(const RunsParams& params, int index) {
  int low = 0;
  int high = params.num_runs - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (params.runs[middle].rows_before <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const RunParams& run = params.runs[low];
  const int i = index - run.rows_before;
  return {int64_t{run.first_row} + i, run.start_position + i, run.table_begin, i < run.num_rows};
}

TANDEM_DEVICE int BlockOf(const RunsParams& params, const RunRow& row, int block_tokens) {
  return params.tables[row.table_begin + row.position / block_tokens];
}

TANDEM_DEVICE uint32_t WarpMaxBits(uint32_t bits) {
  TANDEM_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    const uint32_t other = ShuffleXor(bits, lanes);
    bits = other > bits ? other : bits;
  }
  return bits;
}

}  // namespace tandem::gpu_worker::ops::cuda
