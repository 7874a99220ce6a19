// Included once, by amx_matmul.cc.

#include <immintrin.h>

#include <cstdint>

#include "gpu_worker/ops/host/amx_matmul.h"

namespace tandem::gpu_worker::ops::host {
namespace {

constexpr int64_t kTileRows = 16;
constexpr int64_t kTileColumns = 16;
constexpr int64_t kGroupRows = 32;  // two tiles of rows by two of columns are four sums
constexpr int64_t kTileElements = 512;
constexpr int64_t kStepElements = 2 * kTileElements;
// Rows that go over a panel before the next one is read: they stay in the second-level cache (256
// rows of 1,536 are 768 KiB), and the panel is read from further away once for all of them.
constexpr int64_t kChunkRows = 256;
// The hardware prefetchers pause with the loads; attention's kernels measured 2 to 4 KiB.
constexpr int64_t kAheadBytes = 4096;

// Tile registers: 0 to 3 sums, 4 and 5 rows of the input, 6 and 7 columns of the weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

// The intrinsics do not tell the compiler which memory they read and write.
inline void Fence() { asm volatile("" ::: "memory"); }

// For groups of `rows` rows, 1 to 32.
void Configure(int64_t rows) {
  const int64_t upper = rows < kTileRows ? rows : kTileRows;
  const int64_t lower = rows > kTileRows ? rows - kTileRows : kTileRows;
  TileConfig config;
  config.rows[0] = config.rows[1] = config.rows[4] = static_cast<uint8_t>(upper);
  config.rows[2] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(lower);
  config.rows[6] = config.rows[7] = kTileRows;
  Fence();
  _tile_loadconfig(&config);
}

inline void PrefetchStep(const uint16_t* weights) {
  const char* ahead = reinterpret_cast<const char*>(weights) + kAheadBytes;
#pragma GCC unroll 32
  for (int line = 0; line < 32; ++line) {
    _mm_prefetch(ahead + line * 64, _MM_HINT_T0);
  }
}

// The rows two steps on, past the end of a row those of the next group. Their lines are a whole row
// apart, which the hardware prefetchers do not follow from the second-level cache.
inline void PrefetchRows(const uint16_t* in, int64_t at, int64_t k) {
  constexpr int64_t kAhead = 2 * kAmxStep;
  const uint16_t* ahead = in + at + kAhead + (at + kAhead < k ? 0 : (kGroupRows - 1) * k);
#pragma GCC unroll 32
  for (int64_t row = 0; row < kGroupRows; ++row) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + row * k), _MM_HINT_T0);
  }
}

// sums [32, 32] = up to 32 rows of `in` times one panel.
template <bool kTwoTiles, bool kPrefetch>
inline void MultiplyGroup(const uint16_t* in, const uint16_t* panel, int64_t k, float* sums) {
  const int64_t in_bytes = k * 2;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwoTiles) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t at = 0; at < k; at += kAmxStep, panel += kStepElements) {
    if constexpr (kPrefetch) {
      PrefetchStep(panel);
    }
    if constexpr (kTwoTiles) {
      PrefetchRows(in, at, k);
    }
    _tile_loadd(6, panel, 64);
    _tile_loadd(4, in + at, in_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + kTileElements, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwoTiles) {
      _tile_loadd(5, in + kTileRows * k + at, in_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  constexpr int64_t kSumBytes = kAmxPanelColumns * sizeof(float);
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kTileColumns, kSumBytes);
  if constexpr (kTwoTiles) {
    float* lower = sums + kTileRows * kAmxPanelColumns;
    _tile_stored(2, lower, kSumBytes);
    _tile_stored(3, lower + kTileColumns, kSumBytes);
  }
  Fence();
}

enum class Output { kFloat, kAdded, kBf16 };

// Up to 16 columns of one row.
template <Output kOutput>
inline void StoreColumns(const float* sums, __m512 bias, __mmask16 mask, void* out, int64_t at) {
  __m512 values = _mm512_add_ps(_mm512_load_ps(sums), bias);
  if constexpr (kOutput == Output::kBf16) {
    const __m256bh half = _mm512_cvtneps_pbh(values);
    _mm256_mask_storeu_epi16(static_cast<uint16_t*>(out) + at, mask,
                             reinterpret_cast<__m256i>(half));
  } else {
    float* to = static_cast<float*>(out) + at;
    if constexpr (kOutput == Output::kAdded) {
      values = _mm512_add_ps(values, _mm512_maskz_loadu_ps(mask, to));
    }
    _mm512_mask_storeu_ps(to, mask, values);
  }
}

inline __mmask16 MaskOf(int64_t columns) {
  return static_cast<__mmask16>(columns >= kTileColumns ? 0xffff
                                : columns <= 0          ? 0
                                                        : (1 << columns) - 1);
}

// sums [rows, 32] to columns [column, column + 32) of the output, from row `row` on.
template <Output kOutput>
void StoreGroup(const AmxMatmul& call, const float* sums, int64_t row, int64_t rows,
                int64_t column) {
  const __mmask16 left = MaskOf(call.n - column);
  const __mmask16 right = MaskOf(call.n - column - kTileColumns);
  __m512 left_bias = _mm512_setzero_ps();
  __m512 right_bias = _mm512_setzero_ps();
  if (call.bias != nullptr) {
    left_bias = _mm512_maskz_loadu_ps(left, call.bias + column);
    right_bias = _mm512_maskz_loadu_ps(right, call.bias + column + kTileColumns);
  }
  for (int64_t i = 0; i < rows; ++i, sums += kAmxPanelColumns) {
    const int64_t at = (row + i) * call.n + column;
    StoreColumns<kOutput>(sums, left_bias, left, call.out, at);
    StoreColumns<kOutput>(sums + kTileColumns, right_bias, right, call.out, at + kTileColumns);
  }
}

int64_t Panels(const AmxMatmul& call) { return (call.n + kAmxPanelColumns - 1) / kAmxPanelColumns; }

int64_t Chunks(const AmxMatmul& call) { return (call.rows + kChunkRows - 1) / kChunkRows; }

// Of about equal sizes, whole groups but for the last.
int64_t ChunkRows(const AmxMatmul& call) {
  const int64_t groups = (call.rows + kGroupRows - 1) / kGroupRows;
  const int64_t chunks = Chunks(call);
  return (groups + chunks - 1) / chunks * kGroupRows;
}

class Runner {
 public:
  explicit Runner(const AmxMatmul& call) : call_(call) {}
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  // Live tile registers make every context switch dearer and keep the core from its deeper sleep.
  ~Runner() { _tile_release(); }

  void Panel(int64_t first_row, int64_t last_row, int64_t panel) {
    const uint16_t* weights = call_.weights + panel * call_.k * kAmxPanelColumns;
    for (int64_t row = first_row; row < last_row; row += kGroupRows) {
      const int64_t rows = last_row - row < kGroupRows ? last_row - row : kGroupRows;
      const uint16_t* in = call_.in + row * call_.k;
      if (rows != configured_) {
        Configure(rows);
        configured_ = rows;
      }
      const bool first = row == first_row;
      if (rows > kTileRows) {
        first ? MultiplyGroup<true, true>(in, weights, call_.k, sums_)
              : MultiplyGroup<true, false>(in, weights, call_.k, sums_);
      } else {
        first ? MultiplyGroup<false, true>(in, weights, call_.k, sums_)
              : MultiplyGroup<false, false>(in, weights, call_.k, sums_);
      }
      const int64_t column = panel * kAmxPanelColumns;
      if (call_.out_bf16) {
        StoreGroup<Output::kBf16>(call_, sums_, row, rows, column);
      } else if (call_.accumulate) {
        StoreGroup<Output::kAdded>(call_, sums_, row, rows, column);
      } else {
        StoreGroup<Output::kFloat>(call_, sums_, row, rows, column);
      }
    }
  }

 private:
  const AmxMatmul& call_;
  int64_t configured_ = 0;
  alignas(64) float sums_[kGroupRows * kAmxPanelColumns];
};

}  // namespace

int64_t AmxParts(const AmxMatmul& call) { return Chunks(call) * Panels(call); }

void AmxRun(const AmxMatmul& call, int64_t first, int64_t last) {
  Runner runner(call);
  const int64_t panels = Panels(call);
  const int64_t chunk_rows = ChunkRows(call);
  for (int64_t part = first; part < last; ++part) {
    const int64_t first_row = part / panels * chunk_rows;
    const int64_t last_row = first_row + chunk_rows;
    runner.Panel(first_row, last_row < call.rows ? last_row : call.rows, part % panels);
  }
}

}  // namespace tandem::gpu_worker::ops::host
