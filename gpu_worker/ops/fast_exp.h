#pragma once

#include <cstdint>
#include <cstring>

namespace tandem::gpu_worker {

// e^x for x in [-87, 88], relative error below 3e-7; without branches or calls, so that loops over
// it vectorise (libm's expf does not, and a vocabulary of 128k makes it the sampler's whole cost).
// Always inlined: files for different instruction sets use it, and the linker would keep one copy.
[[gnu::always_inline]] inline float BoundedExp(float x) {
  constexpr float kLog2E = 1.44269504f;
  // ln 2 in two parts, the first with few enough bits that n * kLn2High is exact.
  constexpr float kLn2High = 0.693359375f;
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor to the seventh term; |r| <= ln 2 / 2 leaves 2e-8.
  float sum = 1.0f / 5040.0f;
  sum = sum * r + 1.0f / 720.0f;
  sum = sum * r + 1.0f / 120.0f;
  sum = sum * r + 1.0f / 24.0f;
  sum = sum * r + 1.0f / 6.0f;
  sum = sum * r + 0.5f;
  sum = sum * r + 1.0f;
  sum = sum * r + 1.0f;
  const int32_t power = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &power, sizeof(scale));
  return sum * scale;
}

}  // namespace tandem::gpu_worker
