#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "common/base/bfloat16.h"
#include "tests/fakes/cuda/shim/block.h"
#include "tests/fakes/cuda/shim/grid.h"

// The names of gpu_worker/ops/cuda/intrinsics.cuh for the CPU: what the instructions do, by their
// definition, on the threads of tests/fakes/cuda/shim/block.h. TANDEM_SHIM_ARCH chooses the
// architecture whose code is compiled; kernels of one below 80 get names that end in "@sm75".
#ifndef TANDEM_SHIM_ARCH
#define TANDEM_SHIM_ARCH 900
#endif
#define TANDEM_ARCH TANDEM_SHIM_ARCH
#if TANDEM_ARCH >= 800
#define TANDEM_SHIM_SUFFIX ""
#else
#define TANDEM_SHIM_SUFFIX "@sm75"
#endif

// Local to each source: the same names have other bodies for other architectures.
#define TANDEM_DEVICE [[maybe_unused]] static inline
#define TANDEM_METHOD inline
#define TANDEM_UNROLL
#define TANDEM_UNROLL_BY(count)
#define TANDEM_KERNEL(name, Params, max_threads, barriers)                      \
  static void name(const Params& params);                                       \
  static const ::tandem::shim::Registration name##_registration(                \
      {#name TANDEM_SHIM_SUFFIX, sizeof(Params), max_threads, barriers,         \
       [](const void* params) { name(*static_cast<const Params*>(params)); }}); \
  static void name(const Params& params)
#define TANDEM_SHARED(T, name, count)                                                            \
  static const char name##_key = 0;                                                              \
  const Shared<T> name(reinterpret_cast<T*>(::tandem::shim::CurrentThread().block->StaticShared( \
                           &name##_key, (count) * sizeof(T))),                                   \
                       count)

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr bool kBarriers = true;
constexpr bool kNoBarriers = false;

struct alignas(8) Words2 {
  uint32_t x, y;
};
struct alignas(16) Words4 {
  uint32_t x, y, z, w;
};

inline shim::Thread& Self() { return shim::CurrentThread(); }

template <typename T>
class Shared {
 public:
  Shared(T* data, int count) : data_(data), count_(count) {}
  T Load(int i) const { return LoadAs<T>(i); }
  void Store(int i, T value) const { StoreAs<T>(i, value); }
  template <typename V>
  V LoadAs(int i) const {
    V value{};
    if (Check<V>(i, shim::Access::kRead)) {
      std::memcpy(&value, data_ + i, sizeof(V));
    }
    return value;
  }
  template <typename V>
  void StoreAs(int i, V value) const {
    if (Check<V>(i, shim::Access::kWrite)) {
      std::memcpy(static_cast<void*>(data_ + i), &value, sizeof(V));
    }
  }
  void AtomicAdd(int i, T value) const {
    if (Check<T>(i, shim::Access::kAtomic)) {
      data_[i] += value;
    }
  }
  T* At(int i) const { return data_ + i; }
  bool Has(int i, size_t bytes) const {
    const bool inside = i >= 0 && static_cast<size_t>(i) * sizeof(T) + bytes <=
                                      static_cast<size_t>(count_) * sizeof(T);
    if (!inside) [[unlikely]] {
      shim::OutOfBounds(i, count_);
    }
    return inside;
  }

 private:
  template <typename V>
  bool Check(int i, shim::Access access) const {
    if (!Has(i, sizeof(V))) {
      return false;
    }
    if (shim::watch_shared_memory) {
      Self().block->OnShared(reinterpret_cast<const std::byte*>(data_ + i), sizeof(V), access);
    }
    return true;
  }

  T* data_;
  int count_;
};

template <typename T>
Shared<T> DynamicShared(int first_byte, int count) {
  shim::Block& block = *Self().block;
  if (static_cast<size_t>(first_byte) + static_cast<size_t>(count) * sizeof(T) >
      block.shape.shared_bytes) {
    block.Fault("asks for more dynamic shared memory than it was launched with");
    count = 0;
  }
  return Shared<T>(reinterpret_cast<T*>(block.dynamic_shared() + first_byte), count);
}

TANDEM_DEVICE int ThreadIndex() { return static_cast<int>(Self().index.x); }
TANDEM_DEVICE int BlockThreads() { return static_cast<int>(Self().block->shape.block.x); }
TANDEM_DEVICE int BlockX() { return static_cast<int>(Self().block->index.x); }
TANDEM_DEVICE int BlockY() { return static_cast<int>(Self().block->index.y); }
TANDEM_DEVICE int BlockZ() { return static_cast<int>(Self().block->index.z); }
TANDEM_DEVICE int GridX() { return static_cast<int>(Self().block->shape.grid.x); }

TANDEM_DEVICE void SyncBlock() { Self().block->SyncBlock(); }
TANDEM_DEVICE void SyncWarp() { Self().block->SyncWarp(); }

template <typename T>
T Shuffle(T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  shim::LaneValue mine{};
  std::memcpy(mine.words, &value, sizeof(T));
  const shim::LaneValue* all = Self().block->Exchange(shim::WarpOperation::kShuffle, mine);
  std::memcpy(&value, all[static_cast<uint32_t>(lane) % shim::kWarp].words, sizeof(T));
  return value;
}
template <typename T>
T ShuffleXor(T value, int lanes) {
  return Shuffle(value, static_cast<int>(Self().lane) ^ lanes);
}
TANDEM_DEVICE uint32_t Ballot(bool predicate) {
  const shim::LaneValue mine{{predicate}};
  const shim::LaneValue* all = Self().block->Exchange(shim::WarpOperation::kVote, mine);
  uint32_t votes = 0;
  for (uint32_t lane = 0; lane < shim::kWarp; ++lane) {
    votes |= static_cast<uint32_t>(all[lane].words[0]) << lane;
  }
  return votes;
}

inline void CheckAligned(const void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) {
    Self().block->Fault("a misaligned access of " + std::to_string(bytes) + " bytes");
  }
}
template <typename V>
V LoadGlobal(const void* at) {
  CheckAligned(at, sizeof(V));
  V value;
  std::memcpy(&value, at, sizeof(V));
  return value;
}
template <typename V>
void StoreGlobal(void* at, V value) {
  CheckAligned(at, sizeof(V));
  std::memcpy(at, &value, sizeof(V));
}
TANDEM_DEVICE uint32_t LoadVolatile(const uint32_t* at) {
  return std::atomic_ref<uint32_t>(*const_cast<uint32_t*>(at)).load(std::memory_order_acquire);
}
TANDEM_DEVICE void StoreVolatile(uint32_t* at, uint32_t value) {
  std::atomic_ref<uint32_t>(*at).store(value, std::memory_order_release);
}
TANDEM_DEVICE void FenceSystem() { std::atomic_thread_fence(std::memory_order_seq_cst); }
TANDEM_DEVICE void Pause() { shim::YieldHost(); }

TANDEM_DEVICE uint32_t BitsOf(float value) { return std::bit_cast<uint32_t>(value); }
TANDEM_DEVICE float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
TANDEM_DEVICE float MulRounded(float a, float b) { return a * b; }
TANDEM_DEVICE float AddRounded(float a, float b) { return a + b; }
TANDEM_DEVICE float DivRounded(float a, float b) { return a / b; }
TANDEM_DEVICE float Exp(float x) { return std::exp(x); }
TANDEM_DEVICE float Exp2(float x) { return std::exp2(x); }
TANDEM_DEVICE float Log2(float x) { return std::log2(x); }
TANDEM_DEVICE double LogOf(double x) { return std::log(x); }
TANDEM_DEVICE float RSqrt(float x) { return 1.0f / std::sqrt(x); }
TANDEM_DEVICE float Max(float a, float b) { return std::fmax(a, b); }
TANDEM_DEVICE float Abs(float a) { return std::fabs(a); }

TANDEM_DEVICE uint16_t HalfOf(float value) { return shim::HalfOfFloat(value); }
TANDEM_DEVICE float FloatOfHalf(uint16_t half) { return base::HalfToFloat(half); }
TANDEM_DEVICE uint32_t HalfPairOf(float low, float high) {
  return HalfOf(low) | static_cast<uint32_t>(HalfOf(high)) << 16;
}
#if TANDEM_ARCH >= 800
TANDEM_DEVICE uint32_t BFloat16PairOf(float low, float high) {
  return base::FloatToBFloat16(low) | static_cast<uint32_t>(base::FloatToBFloat16(high)) << 16;
}
#endif
TANDEM_DEVICE uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t select) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t byte = select >> (4 * i) & 7u;
    result |= static_cast<uint32_t>(both >> (8 * byte) & 0xffu) << (8 * i);
  }
  return result;
}

TANDEM_DEVICE void MatrixHalf(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  shim::MultiplyMatrices(*Self().block, shim::MatrixType::kHalf, a, b, c);
}
#if TANDEM_ARCH >= 800
TANDEM_DEVICE void MatrixBFloat16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  shim::MultiplyMatrices(*Self().block, shim::MatrixType::kBFloat16, a, b, c);
}
#endif

template <typename T>
void CopyAsync16(const Shared<T>& to, int i, const void* from, bool is_there) {
  CheckAligned(from, 16);
  if (to.Has(i, 16)) {
    Self().block->CopyAsync(reinterpret_cast<std::byte*>(to.At(i)),
                            static_cast<const std::byte*>(is_there ? from : nullptr), 16);
#if TANDEM_ARCH < 800
    Self().block->CommitCopies();
    Self().block->WaitCopies(0);
#endif
  }
}
TANDEM_DEVICE void CommitCopies() { Self().block->CommitCopies(); }
template <int pending>
void WaitCopies() {
  Self().block->WaitCopies(pending);
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::cuda
