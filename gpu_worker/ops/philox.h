#pragma once

#include <array>
#include <cstdint>

namespace tandem::gpu_worker {

// Philox 4x32 with 10 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11):
// a keyed bijection of a counter, so the draw for an output position needs no state.
constexpr std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1) with 53 random bits, a function of (seed, position) alone.
constexpr double UniformAt(uint64_t seed, uint64_t position) {
  const std::array<uint32_t, 4> random = Philox4x32(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0}, seed);
  const uint64_t bits = (uint64_t{random[0]} << 32 | random[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace tandem::gpu_worker
