// Included once, by avx2_matmul.cc.

#include <immintrin.h>

#include <cstdint>

#include "gpu_worker/ops/host/avx2_matmul.h"

namespace tandem::gpu_worker::ops::host {
namespace {

// Six rows by two registers of columns are 12 sums; with two of weights and one of the input they
// fill the 16 registers, and each pair of loaded weights feeds 12 multiply-adds.
constexpr int64_t kBlockRows = 6;
constexpr int64_t kLanes = 8;
// Widened rows that go over a panel before the next one is read: 192 KiB, which stay in the
// second-level cache.
constexpr int64_t kCachedFloats = 48 * 1024;
// A core's own prefetchers stop at the end of a page.
constexpr int64_t kAheadBytes = 1024;

// The sums of `kRows` rows over one panel; `kChains` of them each, lest a multiply-add wait for the
// one before it.
template <int kRows, int kChains>
inline void MultiplyBlock(const float* in, const uint16_t* panel, int64_t k, float* sums) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  __m256 sum[kChains][kRows][2];
#pragma GCC unroll 4
  for (int chain = 0; chain < kChains; ++chain) {
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      sum[chain][row][0] = sum[chain][row][1] = _mm256_setzero_ps();
    }
  }
  const auto add = [&](__m256(&chain)[kRows][2], int64_t at) __attribute__((always_inline)) {
    const auto* line = reinterpret_cast<const __m256i*>(panel + at * kAvx2PanelColumns);
    const __m256i both = _mm256_loadu_si256(line);
    const __m256 left = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    const __m256 right = _mm256_castsi256_ps(_mm256_and_si256(both, upper));
#pragma GCC unroll 6
    for (int row = 0; row < kRows; ++row) {
      const __m256 value = _mm256_broadcast_ss(in + row * k + at);
      chain[row][0] = _mm256_fmadd_ps(value, left, chain[row][0]);
      chain[row][1] = _mm256_fmadd_ps(value, right, chain[row][1]);
    }
  };
  int64_t at = 0;
  for (; at + kChains <= k; at += kChains) {
    if constexpr (kRows <= 3) {
      _mm_prefetch(reinterpret_cast<const char*>(panel + at * kAvx2PanelColumns) + kAheadBytes,
                   _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) {
      add(sum[chain], at + chain);
    }
  }
  for (; at < k; ++at) {
    add(sum[0], at);
  }
#pragma GCC unroll 6
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256 total = sum[0][row][half];
#pragma GCC unroll 4
      for (int chain = 1; chain < kChains; ++chain) {
        total = _mm256_add_ps(total, sum[chain][row][half]);
      }
      _mm256_store_ps(sums + row * kAvx2PanelColumns + half * kLanes, total);
    }
  }
}

void MultiplyRows(int64_t rows, const float* in, const uint16_t* panel, int64_t k, float* sums) {
  switch (rows) {
    case 1:
      return MultiplyBlock<1, 4>(in, panel, k, sums);
    case 2:
      return MultiplyBlock<2, 2>(in, panel, k, sums);
    case 3:
      return MultiplyBlock<3, 2>(in, panel, k, sums);
    case 4:
      return MultiplyBlock<4, 1>(in, panel, k, sums);
    case 5:
      return MultiplyBlock<5, 1>(in, panel, k, sums);
    default:
      return MultiplyBlock<6, 1>(in, panel, k, sums);
  }
}

// To the nearest, ties to even; what is not a number stays so.
inline __m128i RoundToBf16(__m256 values) {
  const __m256i bits = _mm256_castps_si256(values);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256 is_nan = _mm256_cmp_ps(values, values, _CMP_UNORD_Q);
  const __m256i chosen = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), is_nan));
  const __m256i halves = _mm256_srli_epi32(chosen, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}

// Of eight columns from `column` on, those that there are.
inline void StoreColumns(const Avx2Matmul& call, __m256 values, int64_t row, int64_t column) {
  const int64_t columns = call.n - column;
  if (columns <= 0) {
    return;
  }
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int kept = columns < kLanes ? static_cast<int>(columns) : static_cast<int>(kLanes);
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(kept), lane);
  if (call.bias != nullptr) {
    values = _mm256_add_ps(values, _mm256_maskload_ps(call.bias + column, mask));
  }
  const int64_t at = row * call.n + column;
  if (call.out_bf16) {
    auto* to = static_cast<uint16_t*>(call.out) + at;
    const __m128i rounded = RoundToBf16(values);
    if (columns >= kLanes) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), rounded);
      return;
    }
    alignas(16) uint16_t some[kLanes];
    _mm_store_si128(reinterpret_cast<__m128i*>(some), rounded);
    for (int64_t i = 0; i < columns; ++i) {
      to[i] = some[i];
    }
    return;
  }
  float* to = static_cast<float*>(call.out) + at;
  if (call.accumulate) {
    values = _mm256_add_ps(values, _mm256_maskload_ps(to, mask));
  }
  _mm256_maskstore_ps(to, mask, values);
}

// Rows [first, last) over one panel, in blocks of about equal sizes.
void RunPanel(const Avx2Matmul& call, int64_t first, int64_t last, int64_t panel) {
  const uint16_t* weights = call.weights + panel * call.k * kAvx2PanelColumns;
  const int64_t blocks = (last - first + kBlockRows - 1) / kBlockRows;
  alignas(32) float sums[kBlockRows * kAvx2PanelColumns];
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t begin = first + (last - first) * block / blocks;
    const int64_t rows = first + (last - first) * (block + 1) / blocks - begin;
    MultiplyRows(rows, call.widened + begin * call.k, weights, call.k, sums);
    for (int64_t row = 0; row < rows; ++row) {
      const float* of_row = sums + row * kAvx2PanelColumns;
      const int64_t column = panel * kAvx2PanelColumns;
      StoreColumns(call, _mm256_load_ps(of_row), begin + row, column);
      StoreColumns(call, _mm256_load_ps(of_row + kLanes), begin + row, column + kLanes);
    }
  }
}

}  // namespace

void Avx2Widen(const Avx2Matmul& call, int64_t first, int64_t last) {
  int64_t i = first;
  for (; i + kLanes <= last; i += kLanes) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(call.in + i));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(some), 16);
    _mm256_storeu_ps(call.widened + i, _mm256_castsi256_ps(wide));
  }
  for (; i < last; ++i) {
    const __m128i bits = _mm_cvtsi32_si128(static_cast<int>(uint32_t{call.in[i]} << 16));
    call.widened[i] = _mm_cvtss_f32(_mm_castsi128_ps(bits));
  }
}

void Avx2Run(const Avx2Matmul& call, int64_t first, int64_t last) {
  int64_t cached = kCachedFloats / call.k / kBlockRows * kBlockRows;
  cached = cached < 2 * kBlockRows ? 2 * kBlockRows : cached;
  for (int64_t row = 0; row < call.rows; row += cached) {
    const int64_t end = row + cached < call.rows ? row + cached : call.rows;
    for (int64_t panel = first; panel < last; ++panel) {
      RunPanel(call, row, end, panel);
    }
  }
}

}  // namespace tandem::gpu_worker::ops::host
