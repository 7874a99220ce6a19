// Included once, by amx_attention.cc.

#include <immintrin.h>

#include <cstdint>

#include "gpu_worker/ops/host/amx_attention.h"
#include "gpu_worker/ops/host/registers-inl.h"

namespace tandem::gpu_worker::ops::host {
namespace {

constexpr int kDepth = 32;  // of head_dim, in one product
constexpr int kTileColumns = 16;

// Tile registers: 0 to 3 sums, 4 queries, 5 their right operand K, 6 weights, 7 their right operand
// V, of which a sub-tile has eight pairs of rows.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 32, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 8};
};

// The intrinsics do not tell the compiler which memory they read and write.
inline void Fence() { asm volatile("" ::: "memory"); }

// scores [16, kSubTiles * 16] of 16 queries.
template <int kSubTiles>
inline void Scores(const AmxAttendTile& tile, const uint16_t* q) {
  const int64_t q_bytes = tile.head_dim * 2;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int d = 0; d < tile.head_dim; d += kDepth) {
    const int64_t at = d * kAmxSubTile;
    _tile_loadd(4, q + d, q_bytes);
    _tile_loadd(5, tile.k[0] + at, 64);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kSubTiles > 1) {
      _tile_loadd(5, tile.k[1] + at, 64);
      _tile_dpbf16ps(1, 4, 5);
    }
    if constexpr (kSubTiles > 2) {
      _tile_loadd(5, tile.k[2] + at, 64);
      _tile_dpbf16ps(2, 4, 5);
    }
    if constexpr (kSubTiles > 3) {
      _tile_loadd(5, tile.k[3] + at, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  constexpr int64_t kScoreBytes = kAmxKeyTile * sizeof(float);
  _tile_stored(0, tile.scores, kScoreBytes);
  _tile_stored(1, tile.scores + kAmxSubTile, kScoreBytes);
  _tile_stored(2, tile.scores + 2 * kAmxSubTile, kScoreBytes);
  _tile_stored(3, tile.scores + 3 * kAmxSubTile, kScoreBytes);
  Fence();
}

void ScoresOf(const AmxAttendTile& tile, const uint16_t* q, int sub_tiles) {
  switch (sub_tiles) {
    case 1:
      return Scores<1>(tile, q);
    case 2:
      return Scores<2>(tile, q);
    case 3:
      return Scores<3>(tile, q);
    default:
      return Scores<4>(tile, q);
  }
}

// Turns query `query`'s scores into weights and brings max, sum and acc up to date.
inline void Softmax(const AmxAttendTile& tile, int query, int row, int sub_tiles) {
  const float* scores = tile.scores + row * kAmxKeyTile;
  uint16_t* weights = tile.weights + row * kAmxKeyTile;
  const int32_t visible = tile.visible[query];
  const IntVec lanes = Lanes();
  // Chosen by index: the scores of unused keys may be NaN.
  Vec largest_of_lanes = Vec{} + tile.max[query];
  for (int t = 0; t < sub_tiles * kAmxSubTile; t += kLanes) {
    const Vec seen = lanes + t < visible ? Load(scores + t) : largest_of_lanes;
    largest_of_lanes = seen > largest_of_lanes ? seen : largest_of_lanes;
  }
  const float largest = _mm512_reduce_max_ps(reinterpret_cast<__m512>(largest_of_lanes));
  Vec sums = {};
  for (int t = 0; t < sub_tiles * kAmxSubTile; t += kLanes) {
    const Vec weight =
        lanes + t < visible ? Exp<Terms::kForBf16>(Load(scores + t) - largest) : Vec{};
    const __m256bh half = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(weight));
    std::memcpy(weights + t, &half, sizeof(half));
    sums += weight;
  }
  if (largest > tile.max[query]) {
    float* acc = tile.acc + int64_t{query} * tile.head_dim;
    // Of the start value this is e^-87, and what it scales is zero.
    const Vec decay = Exp<Terms::kAll>(Vec{} + (tile.max[query] - largest));
    tile.sum[query] *= decay[0];
    for (int d = 0; d < tile.head_dim; d += kLanes) {
      Store(acc + d, Load(acc + d) * decay);
    }
    tile.max[query] = largest;
  }
  tile.sum[query] += SumOf(sums);
}

// acc [16, kTiles * 16 columns] += weights times V's chunk.
template <int kTiles>
inline void Accumulate(const AmxAttendTile& tile, int chunk, int sub_tiles, float* acc) {
  const int64_t acc_bytes = tile.head_dim * static_cast<int64_t>(sizeof(float));
  constexpr int64_t kRowBytes = kTiles * kTileColumns * 4;
  _tile_loadd(0, acc, acc_bytes);
  _tile_loadd(1, acc + kTileColumns, acc_bytes);
  if constexpr (kTiles > 2) {
    _tile_loadd(2, acc + 2 * kTileColumns, acc_bytes);
    _tile_loadd(3, acc + 3 * kTileColumns, acc_bytes);
  }
  for (int s = 0; s < sub_tiles; ++s) {
    const uint16_t* v = tile.v[s][chunk];
    _tile_loadd(6, tile.weights + s * kAmxSubTile, kAmxKeyTile * sizeof(uint16_t));
    _tile_loadd(7, v, kRowBytes);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, v + 2 * kTileColumns, kRowBytes);
    _tile_dpbf16ps(1, 6, 7);
    if constexpr (kTiles > 2) {
      _tile_loadd(7, v + 4 * kTileColumns, kRowBytes);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, v + 6 * kTileColumns, kRowBytes);
      _tile_dpbf16ps(3, 6, 7);
    }
  }
  _tile_stored(0, acc, acc_bytes);
  _tile_stored(1, acc + kTileColumns, acc_bytes);
  if constexpr (kTiles > 2) {
    _tile_stored(2, acc + 2 * kTileColumns, acc_bytes);
    _tile_stored(3, acc + 3 * kTileColumns, acc_bytes);
  }
  Fence();
}

}  // namespace

void AmxAttend(const AmxAttendTile& tile) {
  const TileConfig config;
  Fence();
  _tile_loadconfig(&config);
  const int sub_tiles = (tile.num_keys + kAmxSubTile - 1) / kAmxSubTile;
  for (int query = 0; query < tile.num_queries; query += kAmxQueryStep) {
    ScoresOf(tile, tile.q + int64_t{query} * tile.head_dim, sub_tiles);
    for (int row = 0; row < kAmxQueryStep; ++row) {
      Softmax(tile, query + row, row, sub_tiles);
    }
    Fence();
    for (int column = 0; column < tile.head_dim; column += kAmxChunkColumns) {
      float* acc = tile.acc + int64_t{query} * tile.head_dim + column;
      if (tile.head_dim - column >= kAmxChunkColumns) {
        Accumulate<4>(tile, column / kAmxChunkColumns, sub_tiles, acc);
      } else {
        Accumulate<2>(tile, column / kAmxChunkColumns, sub_tiles, acc);
      }
    }
  }
  // Live tile registers make every context switch dearer and keep the core from its deeper sleep.
  _tile_release();
}

}  // namespace tandem::gpu_worker::ops::host
