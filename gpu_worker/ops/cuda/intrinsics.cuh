#pragma once

#include <cstdint>

#include "gpu_worker/ops/cuda/kernel_params.h"

// What the kernels use of the machine, each about one instruction. Kernels are written against
// these names alone, so that their sources also compile for the CPU, where the tests give other
// bodies (device_shim.h on their include path) that run threads as fibers and check every access.
//
//   TANDEM_KERNEL(name, Params, max_threads, kBarriers or kNoBarriers) { body: `params` }
//     kNoBarriers: threads never meet, neither as a block nor as a warp.
//   Shared<T>: a view of shared memory; DynamicShared<T>(first byte, count), TANDEM_SHARED(T, name,
//     count). Blocks are whole warps, and all lanes take part in warp operations.
#if defined(__CUDACC__)

#if defined(__CUDA_ARCH__)
#define TANDEM_ARCH __CUDA_ARCH__
#else
#define TANDEM_ARCH 900  // the host's pass over the source, of which nothing is used
#endif

#define TANDEM_DEVICE __device__ __forceinline__
#define TANDEM_METHOD __device__ __forceinline__  // of a class
#define TANDEM_UNROLL _Pragma("unroll")
#define TANDEM_PRAGMA(text) _Pragma(#text)
#define TANDEM_UNROLL_BY(count) TANDEM_PRAGMA(unroll(count))
#define TANDEM_KERNEL(name, Params, max_threads, barriers)     \
  extern "C" __global__ void __launch_bounds__(max_threads, 1) \
      name(const __grid_constant__ Params params)
#define TANDEM_SHARED(T, name, count)            \
  __shared__ __align__(16) T name##_part[count]; \
  const Shared<T> name(name##_part, count)

namespace tandem::gpu_worker::ops::cuda {

using Words2 = uint2;
using Words4 = uint4;

template <typename T>
class Shared {
 public:
  TANDEM_METHOD Shared(T* data, int) : data_(data) {}
  TANDEM_METHOD T Load(int i) const { return data_[i]; }
  TANDEM_METHOD void Store(int i, T value) const { data_[i] = value; }
  // As many elements as fill V, from i on; i's address is a multiple of V's size.
  template <typename V>
  TANDEM_METHOD V LoadAs(int i) const {
    return *reinterpret_cast<const V*>(data_ + i);
  }
  template <typename V>
  TANDEM_METHOD void StoreAs(int i, V value) const {
    *reinterpret_cast<V*>(data_ + i) = value;
  }
  TANDEM_METHOD void AtomicAdd(int i, T value) const { atomicAdd(data_ + i, value); }
  TANDEM_METHOD T* At(int i) const { return data_ + i; }

 private:
  T* data_;
};

template <typename T>
TANDEM_DEVICE Shared<T> DynamicShared(int first_byte, int count) {
  extern __shared__ __align__(16) unsigned char tandem_dynamic_shared[];
  return Shared<T>(reinterpret_cast<T*>(tandem_dynamic_shared + first_byte), count);
}

TANDEM_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
TANDEM_DEVICE int BlockThreads() { return static_cast<int>(blockDim.x); }
TANDEM_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
TANDEM_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
TANDEM_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }
TANDEM_DEVICE int GridX() { return static_cast<int>(gridDim.x); }

TANDEM_DEVICE void SyncBlock() { __syncthreads(); }
TANDEM_DEVICE void SyncWarp() { __syncwarp(); }
template <typename T>
TANDEM_DEVICE T ShuffleXor(T value, int lanes) {
  return __shfl_xor_sync(0xffffffffu, value, lanes);
}
template <typename T>
TANDEM_DEVICE T Shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
TANDEM_DEVICE uint32_t Ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }

template <typename V>
TANDEM_DEVICE V LoadGlobal(const void* at) {
  return *static_cast<const V*>(at);
}
template <typename V>
TANDEM_DEVICE void StoreGlobal(void* at, V value) {
  *static_cast<V*>(at) = value;
}
// Past the caches, for words that the host writes.
TANDEM_DEVICE uint32_t LoadVolatile(const uint32_t* at) {
  return *static_cast<const volatile uint32_t*>(at);
}
TANDEM_DEVICE void StoreVolatile(uint32_t* at, uint32_t value) {
  *static_cast<volatile uint32_t*>(at) = value;
}
TANDEM_DEVICE void FenceSystem() { __threadfence_system(); }
TANDEM_DEVICE void Pause() { __nanosleep(200); }

TANDEM_DEVICE uint32_t BitsOf(float value) { return __float_as_uint(value); }
TANDEM_DEVICE float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
// Not fused: for results that must be the host's, bit by bit.
TANDEM_DEVICE float MulRounded(float a, float b) { return __fmul_rn(a, b); }
TANDEM_DEVICE float AddRounded(float a, float b) { return __fadd_rn(a, b); }
TANDEM_DEVICE float DivRounded(float a, float b) { return __fdiv_rn(a, b); }
TANDEM_DEVICE float Exp(float x) { return expf(x); }
TANDEM_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TANDEM_DEVICE float Log2(float x) { return log2f(x); }
TANDEM_DEVICE double LogOf(double x) { return log(x); }
TANDEM_DEVICE float RSqrt(float x) { return rsqrtf(x); }
TANDEM_DEVICE float Max(float a, float b) { return fmaxf(a, b); }
TANDEM_DEVICE float Abs(float a) { return fabsf(a); }

TANDEM_DEVICE uint16_t HalfOf(float value) {
  uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}
TANDEM_DEVICE float FloatOfHalf(uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
// Two values as a pair of 16-bit floats, the first in the low half.
TANDEM_DEVICE uint32_t HalfPairOf(float low, float high) {
  return HalfOf(low) | static_cast<uint32_t>(HalfOf(high)) << 16;
}
#if TANDEM_ARCH >= 800
TANDEM_DEVICE uint32_t BFloat16PairOf(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
#endif
// The bytes of (a, b), a's first, that the four nibbles of `select` name, lowest first.
TANDEM_DEVICE uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t select) {
  return __byte_perm(a, b, select);
}

// c [16, 8] += a [16, 16] * b [16, 8], float32 += 16-bit floats. Of lane l, with g = l / 4 and
// q = l % 4: a[0], a[1] hold rows g and g + 8, columns 2q and 2q + 1; a[2], a[3] the same eight
// columns further; b[0] rows 2q and 2q + 1, b[1] eight further, of column g; c[0], c[1] row g,
// columns 2q and 2q + 1, c[2], c[3] row g + 8.
TANDEM_DEVICE void MatrixHalf(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if TANDEM_ARCH >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}
#if TANDEM_ARCH >= 800
TANDEM_DEVICE void MatrixBFloat16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// 16 bytes from `from` (always an address of global memory) to `to`'s element i, or zeros where
// nothing `is_there`. Readable by this thread after WaitCopies, by others after a barrier behind
// it.
template <typename T>
TANDEM_DEVICE void CopyAsync16(const Shared<T>& to, int i, const void* from, bool is_there) {
#if TANDEM_ARCH >= 800
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to.At(i)));
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address),
               "l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#else
  to.StoreAs(i, is_there ? LoadGlobal<Words4>(from) : Words4{0, 0, 0, 0});
#endif
}
TANDEM_DEVICE void CommitCopies() {
#if TANDEM_ARCH >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// All but the newest `pending` groups have arrived.
template <int pending>
TANDEM_DEVICE void WaitCopies() {
#if TANDEM_ARCH >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

}  // namespace tandem::gpu_worker::ops::cuda

#else
#include "device_shim.h"
#endif

namespace tandem::gpu_worker::ops::cuda {

constexpr int kWarpThreads = 32;

TANDEM_DEVICE int Lane() { return ThreadIndex() % kWarpThreads; }
TANDEM_DEVICE int WarpIndex() { return ThreadIndex() / kWarpThreads; }

TANDEM_DEVICE float WarpSum(float value) {
  TANDEM_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value += ShuffleXor(value, lanes);
  }
  return value;
}

TANDEM_DEVICE float WarpMax(float value) {
  TANDEM_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    value = Max(value, ShuffleXor(value, lanes));
  }
  return value;
}

}  // namespace tandem::gpu_worker::ops::cuda
